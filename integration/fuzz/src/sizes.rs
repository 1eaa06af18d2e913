use std::time::Duration;

use crate::proto::{Params, ReadDepth, SessionOffer};

/// READ depths that most devices support.
pub(crate) const BOTH_WAYS: ReadDepth = ReadDepth {
    outgoing: 16,
    incoming: 16,
};

/// Returns parameters with small sizes, so that a short input can reach every limit.
pub(crate) fn params() -> Params {
    Params {
        window: 4,
        shared: false,
        eager_size: 64,
        max_message: 1 << 20,
        large_memory: 1 << 20,
        longest_chunk: 1 << 20,
        read_timeout: Duration::from_secs(30),
        send_slots: 4,
        max_fragments: 4,
        completes_unsignalled: false,
        max_unsignalled: 64 << 10,
        delays_grants: true,
        connect_timeout: Duration::from_secs(5),
        resolve_timeout: Duration::from_secs(2),
        retry_refused: false,
        close_timeout: Duration::from_secs(5),
        drain_timeout: Duration::from_secs(2),
        keepalive_interval: None,
        keepalive_timeout: Duration::from_secs(3),
        stream: false,
        takes_control_messages: true,
        held: 0,
        session: SessionOffer::None,
        stream_buffer: 4 << 10,
        engine: 0,
        number: 0,
    }
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
