/// Memory of the peer: an address and a key, as the peer announced them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteAddr {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

/// What a work request of the send queue does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOp {
    Send,
    Read(RemoteAddr),
    Write(RemoteAddr),
    WriteWithImm(RemoteAddr, u32),
    FetchAdd {
        remote: RemoteAddr,
        add: u64,
    },
    CompareSwap {
        remote: RemoteAddr,
        compare: u64,
        swap: u64,
    },
}

/// A part of this side's memory that a work request names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sge {
    pub(crate) start: *mut u8,
    pub(crate) len: u32,
    /// Not looked at where the bytes are inline.
    pub(crate) lkey: u32,
}

/// How a work request of the send queue is posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendFlags {
    /// It completes by itself; others are covered by the next one that does.
    pub(crate) signalled: bool,
    /// Its bytes are copied before the call returns.
    pub(crate) inline: bool,
}
