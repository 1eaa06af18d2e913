/// The operations that the devices of both sides support in addition to messages, reads and writes.
///
/// An operation that either cannot do is refused with
/// `Error::NotSupported` before anything is sent, and the connection goes on.
/// `Endpoint::capabilities` returns them. Over TCP all are supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// `Endpoint::fetch_add` and
    /// `Endpoint::compare_swap`: `atomic_cap` of `ibv_query_device(3)`. Some
    /// adapters have them not, and iWARP does not know them.
    pub atomic: bool,
    /// `Endpoint::write_with_imm`: iWARP's RDMAP (RFC 5040) has no such
    /// operation.
    pub write_with_imm: bool,
}

impl Capabilities {
    /// Everything.
    pub const ALL: Self = Self {
        atomic: true,
        write_with_imm: true,
    };

    /// Names what a device can do.
    #[must_use]
    pub const fn new(atomic: bool, write_with_imm: bool) -> Self {
        Self {
            atomic,
            write_with_imm,
        }
    }

    /// What both can do.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            atomic: self.atomic && other.atomic,
            write_with_imm: self.write_with_imm && other.write_with_imm,
        }
    }
}
