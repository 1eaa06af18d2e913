//! Parses the header of one PDU on a TCP stream, and checks properties that any correct parser has.

use rdmsg_proto::tcp::{LONGEST_HEADER, Pdu};

/// Parses the bytes and each of their prefixes.
pub fn one_header(bytes: &[u8]) {
    let whole = Pdu::parse(bytes);
    for len in 0..bytes.len().min(LONGEST_HEADER + 1) {
        match Pdu::parse(&bytes[..len]) {
            // The prefix is valid but incomplete.
            Ok(None) => {}
            // Bytes after a complete header must not change the result, and further bytes must not
            // make an invalid header valid.
            found => assert_eq!(found, whole, "{len} bytes of {}", bytes.len()),
        }
    }
    match whole {
        Ok(Some((pdu, len))) => {
            assert!(len <= LONGEST_HEADER);
            assert_eq!(
                pdu.emit().bytes(),
                &bytes[..len],
                "a parsed header must be emitted as the same bytes"
            );
        }
        Ok(None) => assert!(
            bytes.len() < LONGEST_HEADER,
            "LONGEST_HEADER bytes must suffice to parse a header"
        ),
        Err(_) => {}
    }
}
