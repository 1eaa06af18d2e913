/// What the devices of both sides can do, beside messages, reads and writes.
///
/// An operation that either cannot do is refused with
/// [`Error::NotSupported`](crate::Error::NotSupported) before anything is sent, and the connection
/// goes on. [`Endpoint::capabilities`](crate::Endpoint::capabilities) tells it before the first
/// one. Over TCP everything is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// [`fetch_add`](crate::Endpoint::fetch_add) and
    /// [`compare_swap`](crate::Endpoint::compare_swap): `atomic_cap` of `ibv_query_device(3)`. Some
    /// adapters have them not, and iWARP does not know them.
    pub atomic: bool,
    /// [`write_with_imm`](crate::Endpoint::write_with_imm): iWARP's RDMAP (RFC 5040) has no such
    /// operation.
    pub write_with_imm: bool,
}

impl Capabilities {
    /// Everything.
    pub(crate) const ALL: Self = Self {
        atomic: true,
        write_with_imm: true,
    };

    /// What both can do.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self {
            atomic: self.atomic && other.atomic,
            write_with_imm: self.write_with_imm && other.write_with_imm,
        }
    }
}
