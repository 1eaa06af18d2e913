//! One PDU's header on a TCP stream, against what must be true of any parser of it.

use rdmsg_proto::tcp::{LONGEST_HEADER, Pdu};

/// Parses the bytes, and all that they begin with.
pub fn one_header(bytes: &[u8]) {
    let whole = Pdu::parse(bytes);
    for len in 0..bytes.len().min(LONGEST_HEADER + 1) {
        match Pdu::parse(&bytes[..len]) {
            // Bytes are missing, and nothing was wrong with those that were there.
            Ok(None) => {}
            // A whole header, whatever follows it; and a wrong one stays wrong.
            found => assert_eq!(found, whole, "{len} bytes of {}", bytes.len()),
        }
    }
    match whole {
        Ok(Some((pdu, len))) => {
            assert!(len <= LONGEST_HEADER);
            assert_eq!(
                pdu.emit().bytes(),
                &bytes[..len],
                "there is one way to say it"
            );
        }
        Ok(None) => assert!(bytes.len() < LONGEST_HEADER, "a header has an end"),
        Err(_) => {}
    }
}
