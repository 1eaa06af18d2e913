//! Compares the tables of PROTOCOL.md with the code.

use super::{
    CONTROL_RECEIVES, HEADER_LEN, REJECT_DATA_MAX, REPLY_DATA_MAX, REQUEST_DATA_MAX,
    frame::{DESCRIPTOR_LEN, Descriptor, Header, Kind},
    hello::{BATCHES, Hello, VERSION},
    outbound::LARGE_IN_FLIGHT,
    reject::{Reject, RejectCode},
};

/// The rows of a table of the page, without its head; each with the text of its cells.
fn table(name: &str) -> Vec<Vec<&'static str>> {
    let page = include_str!("../PROTOCOL.md");
    let mark = format!("<!-- table: {name} -->\n");
    let (_, table) = page.split_once(&mark).expect("the page has this table");
    let lines = table.lines().take_while(|line| line.starts_with('|'));
    let cells = lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect());
    cells.skip(2).collect()
}

/// Fails unless the table's fields lie one after the other and fill the structure, and each of
/// `fields` lies where the table says: `zero` with all of its bits set.
fn compare(name: &str, zero: &[u8], fields: &[(&str, Vec<u8>)]) {
    const FIXED: [&str; 7] = [
        "magic", "version", "length", "kind", "flags", "code", "reserved",
    ];
    let mut end = 0;
    for row in table(name) {
        let [offset, size, field, ..] = row[..] else {
            panic!("{name}: {row:?}")
        };
        let offset: usize = offset.parse().unwrap();
        assert_eq!(offset, end, "{name}: {field} follows the field before it");
        end += size.parse::<usize>().unwrap();
        match fields.iter().find(|(other, _)| *other == field) {
            Some((_, structure)) => {
                let mut expected = zero.to_vec();
                expected[offset..end].fill(0xff);
                assert_eq!(*structure, expected, "{name}: {field}");
            }
            None => assert!(FIXED.contains(&field), "{name}: {field}"),
        }
    }
    assert_eq!(end, zero.len(), "{name}: all of it is described");
}

/// The bytes of an example of the page.
fn example(name: &str) -> Vec<u8> {
    let page = include_str!("../PROTOCOL.md");
    let mark = format!("<!-- bytes: {name} -->\n```\n");
    let (_, rest) = page.split_once(&mark).expect("the page has this example");
    let (hex, _) = rest.split_once("```").unwrap();
    let bytes = hex.split_whitespace();
    bytes
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

/// The first two cells of each row.
fn numbers_and_names(name: &str) -> Vec<(String, String)> {
    let rows = table(name).into_iter();
    rows.map(|row| (row[0].to_owned(), row[1].to_owned()))
        .collect()
}

#[test]
fn the_hello_is_as_protocol_md_says() {
    let zero = Hello {
        version: VERSION,
        features: 0,
        window: 0,
        credits: 0,
        eager_size: 0,
        max_message: 0,
        keepalive_ms: 0,
        engine: 0,
    };
    let with = |change: fn(&mut Hello)| {
        let mut hello = zero;
        change(&mut hello);
        hello.emit(b"").to_vec()
    };
    compare(
        "hello",
        &zero.emit(b""),
        &[
            ("features", with(|hello| hello.features = u16::MAX)),
            ("window", with(|hello| hello.window = u16::MAX)),
            ("credits", with(|hello| hello.credits = u16::MAX)),
            ("eager size", with(|hello| hello.eager_size = u32::MAX)),
            (
                "largest message",
                with(|hello| hello.max_message = u64::MAX),
            ),
            ("keepalive", with(|hello| hello.keepalive_ms = u32::MAX)),
            ("engine", with(|hello| hello.engine = u64::MAX)),
        ],
    );
    let text = |field: usize| table("hello")[field][3];
    assert!(text(0).starts_with("`rdms` (0x72646d73)"));
    assert_eq!(zero.emit(b"")[..4], *b"rdms");
    assert_eq!(text(1), VERSION.to_string());
}

#[test]
fn the_rejection_is_as_protocol_md_says() {
    let code = RejectCode::Application;
    let reject = |own, theirs| Reject { code, own, theirs }.emit(b"").to_vec();
    let fields = [
        ("own", reject(u64::MAX, 0)),
        ("theirs", reject(0, u64::MAX)),
    ];
    compare("rejection", &reject(0, 0), &fields);
    let text = |field: usize| table("rejection")[field][3];
    assert!(text(0).starts_with("`rdmR` (0x72646d52)"));
    assert!(text(1).starts_with(&VERSION.to_string()));
    let codes = RejectCode::ALL.map(|code| ((code as u16).to_string(), code.field().to_owned()));
    assert_eq!(numbers_and_names("codes"), codes);
}

fn name(kind: Kind) -> String {
    match kind {
        Kind::Data | Kind::Rendezvous | Kind::Batch => format!("{kind:?}"),
        Kind::Control(control) => format!("{control:?}"),
    }
}

#[test]
fn frames_are_as_protocol_md_says() {
    let header = |sequence, grant, len, arg| {
        let kind = Kind::Data;
        let header = Header {
            kind,
            sequence,
            grant,
            len,
            arg,
        };
        header.emit().to_vec()
    };
    let fields = [
        ("sequence", header(u16::MAX, 0, 0, 0)),
        ("grant", header(0, u32::MAX, 0, 0)),
        ("length", header(0, 0, u32::MAX, 0)),
        ("argument", header(0, 0, 0, u32::MAX)),
    ];
    compare("frame", &header(0, 0, 0, 0), &fields);
    let kinds = Kind::ALL.map(|kind| (kind.number().to_string(), name(kind)));
    assert_eq!(numbers_and_names("kinds"), kinds);

    let descriptor = |addr, len, rkey| Descriptor { addr, len, rkey }.emit().to_vec();
    let fields = [
        ("address", descriptor(u64::MAX, 0, 0)),
        ("length", descriptor(0, u64::MAX, 0)),
        ("rkey", descriptor(0, 0, u32::MAX)),
    ];
    compare("descriptor", &descriptor(0, 0, 0), &fields);
}

#[test]
fn the_examples_are_as_protocol_md_says() {
    let hello = Hello {
        version: VERSION,
        features: BATCHES,
        window: 32,
        credits: 0,
        eager_size: 16 << 10,
        max_message: 1 << 30,
        keepalive_ms: 2000,
        engine: 0xa1a2_a3a4_a5a6_a7a8,
    };
    assert_eq!(*hello.emit(b""), *example("hello"));
    let header = |kind, sequence, len| {
        let (grant, arg) = (32, 0);
        let header = Header {
            kind,
            sequence,
            grant,
            len,
            arg,
        };
        header.emit()
    };
    let data = [&header(Kind::Data, 0, 5)[..], b"hello"].concat();
    assert_eq!(data, example("data"));
    let descriptor = Descriptor {
        addr: 0x7f00_0000_1000,
        len: 1 << 20,
        rkey: 0x1234,
    };
    let rendezvous = [&header(Kind::Rendezvous, 1, 24)[..], &descriptor.emit()].concat();
    assert_eq!(rendezvous, example("rendezvous"));
    let messages = b"\0\0\0\x02hi\0\0\0\0\0\0\0\x05there";
    let batch = [&header(Kind::Batch, 2, 19)[..], messages].concat();
    assert_eq!(batch, example("batch"));
}

#[test]
fn the_constants_are_as_protocol_md_says() {
    let hello = 56 - REQUEST_DATA_MAX;
    let reject = 148 - REJECT_DATA_MAX;
    assert_eq!(hello, 196 - REPLY_DATA_MAX);
    let constants = [
        hello,
        REQUEST_DATA_MAX,
        REPLY_DATA_MAX,
        reject,
        REJECT_DATA_MAX,
        HEADER_LEN,
        DESCRIPTOR_LEN,
        CONTROL_RECEIVES as usize,
        LARGE_IN_FLIGHT as usize,
    ]
    .map(|constant| constant.to_string());
    let rows = table("constants");
    let told: Vec<_> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(told, constants);
}
