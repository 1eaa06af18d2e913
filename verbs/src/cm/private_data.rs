use std::{fmt, ops::Deref};

use rdma_status::OsError;

/// The capacity of [`PrivateData`] in bytes. Longer data cannot be sent, because librdmacm stores
/// the length of private data in one byte.
const CAPACITY: usize = u8::MAX as usize;

/// Private data: bytes that a connect request, an acceptance or a rejection carries to the peer's
/// program.
///
/// The maximum length depends on the type of message, and differs between connections and
/// datagrams: see the constants. These limits apply to InfiniBand and RoCE with IP addresses; this
/// crate also applies them to iWARP. The connection manager may append zeros to the data, so a
/// protocol must transmit the length itself.
#[derive(Clone, Copy)]
pub struct PrivateData {
    bytes: [u8; CAPACITY],
    len: u8,
}

impl PrivateData {
    /// The maximum length in a connect request, in bytes.
    pub const CONNECT_MAX: usize = 56;
    /// The maximum length in the acceptance of a connection, in bytes.
    pub const ACCEPT_MAX: usize = 196;
    /// The maximum length in the rejection of a connection, in bytes.
    pub const REJECT_MAX: usize = 148;
    /// The maximum length in a connect request for datagrams, in bytes.
    pub const UD_CONNECT_MAX: usize = 180;
    /// The maximum length in an acceptance or a rejection for datagrams, in bytes.
    pub const UD_ACCEPT_MAX: usize = 136;

    /// Returns `EMSGSIZE` if the data is longer than `limit`, the maximum length of private data in
    /// the message that `call` sends, in bytes.
    ///
    /// The kernel would also refuse such data, but its error does not name the reason.
    pub(super) fn check(&self, call: &'static str, limit: usize) -> Result<(), OsError> {
        if self.len() > limit {
            Err(OsError::new(call, libc::EMSGSIZE))
        } else {
            Ok(())
        }
    }
}

impl Default for PrivateData {
    fn default() -> Self {
        Self {
            bytes: [0; CAPACITY],
            len: 0,
        }
    }
}

impl TryFrom<&[u8]> for PrivateData {
    type Error = OsError;

    /// Returns `EMSGSIZE` if `data` is longer than 255 bytes.
    fn try_from(data: &[u8]) -> Result<Self, OsError> {
        let len =
            u8::try_from(data.len()).map_err(|_| OsError::new("private data", libc::EMSGSIZE))?;
        let mut this = Self {
            len,
            ..Self::default()
        };
        this.bytes[..data.len()].copy_from_slice(data);
        Ok(this)
    }
}

impl Deref for PrivateData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl PartialEq for PrivateData {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for PrivateData {}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData({:02x?})", &**self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_bounded() {
        let data = [7; 255];
        assert_eq!(*PrivateData::try_from(&data[..]).unwrap(), data);
        assert_eq!(
            PrivateData::try_from(&[0; 256][..]).unwrap_err().errno,
            libc::EMSGSIZE
        );
        let fits = PrivateData::try_from(&data[..56]).unwrap();
        assert_eq!(fits.check("rdma_connect", PrivateData::CONNECT_MAX), Ok(()));
        let too_long = PrivateData::try_from(&data[..57]).unwrap();
        assert_eq!(
            too_long.check("rdma_connect", PrivateData::CONNECT_MAX),
            Err(OsError::new("rdma_connect", libc::EMSGSIZE))
        );
    }
}
