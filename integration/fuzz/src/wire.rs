//! Reads and writes fields of the wire format, without the code under test.

use crate::proto::Params;

/// Returns the number in the 4 bytes at the offset `at`.
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Returns the number in the 8 bytes at the offset `at`.
pub(crate) fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Returns the hello of a peer with the parameters `params`. If `long` is set, the hello announces
/// private data in a separate frame.
pub(crate) fn hello(params: &Params, long: bool) -> Vec<u8> {
    let mut bytes = b"rdms\x03\x24".to_vec();
    bytes.extend([u8::from(long), 0x80]);
    bytes.extend(params.window.to_be_bytes());
    bytes.extend([0; 2]);
    bytes.extend(params.eager_size.to_be_bytes());
    bytes.extend(params.max_message.to_be_bytes());
    bytes.extend([0; 12]);
    assert_eq!(bytes.len(), 36);
    bytes
}
