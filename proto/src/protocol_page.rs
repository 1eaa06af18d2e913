//! Checks that PROTOCOL.md and the code agree.
//!
//! Code that implements a rule of PROTOCOL.md quotes the rule, and names the anchor of the heading
//! above the rule:
//!
//! ```text
//! //= PROTOCOL.md#half-close
//! //# A Finish is sent once at most, and not after a Close.
//! ```

use std::{fs, path::Path};

use super::{
    CONTROL_RECEIVES, CONTROL_WINDOW, HEADER_LEN, MAX_CONTROL_MESSAGE, REJECT_DATA_MAX,
    REPLY_DATA_MAX, REQUEST_DATA_MAX,
    frame::{DESCRIPTOR_LEN, Descriptor, Header, Kind},
    hello::{BATCHES, CONTROL_MESSAGES, FRAGMENTS, Hello, VERSION},
    outbound::LARGE_IN_FLIGHT,
    reject::{Reject, RejectCode},
};

/// Returns the rows of the table with this name in PROTOCOL.md, without the header rows. Each row
/// consists of the text of its cells.
fn table(name: &str) -> Vec<Vec<&'static str>> {
    let page = include_str!("../PROTOCOL.md");
    let mark = format!("<!-- table: {name} -->\n");
    let (_, table) = page.split_once(&mark).expect("the page has this table");
    let lines = table.lines().take_while(|line| line.starts_with('|'));
    let cells = lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect());
    cells.skip(2).collect()
}

/// Returns the bytes of the example with this name in PROTOCOL.md.
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

/// Returns the first two cells of each row of the table with this name.
fn numbers_and_names(name: &str) -> Vec<(String, String)> {
    let rows = table(name).into_iter();
    rows.map(|row| (row[0].to_owned(), row[1].to_owned()))
        .collect()
}

#[test]
fn codes_of_rejections_are_as_protocol_md_says() {
    let codes = RejectCode::ALL.map(|code| ((code as u16).to_string(), code.field().to_owned()));
    assert_eq!(numbers_and_names("codes"), codes);
}

#[test]
fn kinds_of_frames_are_as_protocol_md_says() {
    let name = |kind| match kind {
        Kind::Data
        | Kind::Rendezvous
        | Kind::Batch
        | Kind::Fragment
        | Kind::ControlMessage
        | Kind::Request
        | Kind::Answer => format!("{kind:?}"),
        Kind::Control(control) => format!("{control:?}"),
    };
    let kinds = Kind::ALL.map(|kind| (kind.number().to_string(), name(kind)));
    assert_eq!(numbers_and_names("kinds"), kinds);
}

#[test]
fn the_examples_are_as_protocol_md_says() {
    let hello = Hello {
        version: VERSION,
        features: BATCHES | FRAGMENTS | CONTROL_MESSAGES,
        window: 32,
        credits: 0,
        eager_size: 16 << 10,
        max_message: 1 << 30,
        keepalive_ms: 2000,
        engine: 0xa1a2_a3a4_a5a6_a7a8,
    };
    assert_eq!(*hello.emit(b""), *example("hello"));
    let reject = Reject {
        code: RejectCode::Version,
        own: 3,
        theirs: 2,
    };
    assert_eq!(*reject.emit(b""), *example("rejection"));
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
    let first = [&header(Kind::Fragment, 3, 7)[..], b"good"].concat();
    let last = [&header(Kind::Fragment, 4, 3)[..], b"bye"].concat();
    assert_eq!([first, last].concat(), example("fragments"));
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
        CONTROL_WINDOW as usize,
        MAX_CONTROL_MESSAGE as usize,
    ]
    .map(|constant| constant.to_string());
    let rows = table("constants");
    let told: Vec<_> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(told, constants);
}

/// A rule of PROTOCOL.md that a comment in the code quotes.
struct Quote {
    /// The file and the line number of the quotation, for error messages.
    location: String,
    /// The anchor of the heading above the rule.
    section: String,
    text: String,
}

/// Adds the quotations in all files below `folder` to `quotes`.
fn find_quotes(folder: &Path, quotes: &mut Vec<Quote>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_quotes(&path, quotes);
            continue;
        }
        let mut quoting = false;
        for (number, line) in (1..).zip(fs::read_to_string(&path).unwrap().lines()) {
            let line = line.trim();
            if let Some(section) = line.strip_prefix("//= PROTOCOL.md#") {
                quotes.push(Quote {
                    location: format!("{}:{number}", path.display()),
                    section: section.to_owned(),
                    text: String::new(),
                });
                quoting = true;
            } else if let Some(text) = line.strip_prefix("//# ") {
                assert!(
                    quoting,
                    "{}:{number}: a quotation must follow the name of its heading",
                    path.display()
                );
                quotes.last_mut().unwrap().text += &format!("{text} ");
            } else {
                quoting = false;
            }
        }
    }
}

/// Returns the text of the section with this anchor in PROTOCOL.md, up to the next heading, with
/// single spaces between words. Returns `None` if there is no such heading.
fn section(anchor: &str) -> Option<String> {
    let page = include_str!("../PROTOCOL.md");
    let is_heading = |line: &&str| line.starts_with('#');
    let mut lines = page.lines();
    lines.find(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        is_heading(line) && title.replace(' ', "-") == anchor
    })?;
    let text: Vec<_> = lines.take_while(|line| !is_heading(line)).collect();
    Some(with_single_spaces(&text.join(" ")))
}

fn with_single_spaces(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns an error message if the section that the quotation names does not contain the quoted
/// text.
fn quote_error(quote: &Quote) -> Option<String> {
    let Quote {
        location,
        section: anchor,
        text,
    } = quote;
    let Some(section) = section(anchor) else {
        return Some(format!("{location}: the page has no heading {anchor}"));
    };
    let text = with_single_spaces(text);
    let quoted = !text.is_empty() && section.contains(&text);
    (!quoted).then(|| format!("{location}: the section {anchor} does not contain: {text}"))
}

#[test]
fn quoted_rules_are_in_protocol_md() {
    let mut quotes = Vec::new();
    find_quotes(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut quotes,
    );
    assert!(
        quotes.len() >= 40,
        "at least 40 rules must be quoted, found {}",
        quotes.len()
    );
    let complaints: Vec<_> = quotes.iter().filter_map(quote_error).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn rules_that_the_page_lacks_are_found() {
    let complains = |section: &str, text: &str| {
        let (section, text) = (section.to_owned(), text.to_owned());
        let location = String::new();
        quote_error(&Quote {
            location,
            section,
            text,
        })
        .is_some()
    };
    let rule = "A Finish is sent once at most,  and not after a Close.";
    assert!(!complains("half-close", rule));
    assert!(
        complains("closing", rule),
        "a rule below another heading must be reported"
    );
    assert!(complains("no-heading", rule));
    assert!(complains("half-close", "A Finish is sent twice at most."));
    assert!(complains("half-close", ""));
}
