#![allow(unsafe_code)]

use std::{fmt, net::Ipv6Addr};

use rdma_status::{OsError, open_enum};

use crate::sys::{ffi, verbs_ext};

/// A global identifier (GID): the address of a port. A GID has 16 bytes, and is displayed as an
/// IPv6 address.
///
/// On RoCE, the kernel derives each GID from an address of the network interface. For example, the
/// GID for the IPv4 address 192.0.2.1 is displayed as `::ffff:192.0.2.1`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "ibv_gid")]
pub struct Gid([u8; 16]);

/// An entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "ibv_gid_entry")]
pub struct GidEntry {
    /// The global identifier.
    pub gid: Gid,
    /// The index of this entry in the port's table.
    pub gid_index: u32,
    /// The number of the port, from 1.
    pub port_num: u32,
    /// The format of the packets that the device sends if a connection uses this entry. Both sides
    /// of a connection must use the same format.
    pub gid_type: GidType,
    /// The index of the network interface to which this entry belongs, or 0 if the entry belongs to
    /// no network interface. On RoCE, entries belong to network interfaces.
    pub ndev_ifindex: u32,
}

open_enum! {
    /// The packet format that a device uses for a GID: `enum ibv_gid_type`.
    #[doc(alias = "ibv_gid_type")]
    pub struct GidType(u32);
    /// InfiniBand or iWARP packets.
    IB = 0;
    /// RoCE version 1: Ethernet frames, which routers do not forward.
    ROCE_V1 = 1;
    /// RoCE version 2: UDP packets.
    ROCE_V2 = 2;
}

impl Gid {
    /// Creates an identifier from its 16 bytes in network byte order.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the 16 bytes in network byte order.
    #[must_use]
    pub const fn octets(self) -> [u8; 16] {
        self.0
    }

    /// Returns whether all bytes are zero, as in an empty entry of a GID table.
    #[must_use]
    pub fn is_unspecified(self) -> bool {
        self == Self::default()
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(addr: Ipv6Addr) -> Self {
        Self(addr.octets())
    }
}

impl From<Gid> for Ipv6Addr {
    fn from(gid: Gid) -> Self {
        Self::from(gid.0)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(*self).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl GidEntry {
    pub(super) fn from_raw(raw: ffi::ibv_gid_entry) -> Self {
        Self {
            // SAFETY: the member `raw` covers the whole union, and the structure is initialised.
            gid: Gid(unsafe { raw.gid.raw }),
            gid_index: raw.gid_index,
            port_num: raw.port_num,
            gid_type: GidType::from_raw(raw.gid_type),
            ndev_ifindex: raw.ndev_ifindex,
        }
    }
}

/// Reads at most `len` entries from the GID tables of all ports of a device. Skips empty entries.
///
/// # Safety
///
/// `context` is open.
pub(super) unsafe fn all(
    context: *mut ffi::ibv_context,
    len: usize,
) -> Result<Vec<GidEntry>, OsError> {
    let mut entries = Vec::<ffi::ibv_gid_entry>::with_capacity(len);
    // SAFETY: the caller guarantees that `context` is open, and `entries` has a capacity of at
    // least `len` entries.
    let count = unsafe { verbs_ext::ibv_query_gid_table(context, entries.as_mut_ptr(), len) };
    let Ok(count) = usize::try_from(count) else {
        let errno = i32::try_from(count.unsigned_abs()).unwrap_or(libc::EIO);
        return Err(OsError::new("ibv_query_gid_table", errno));
    };
    // SAFETY: the call initialised the first `count` entries, and the capacity is at least `len`.
    unsafe { entries.set_len(count.min(len)) };
    Ok(entries.into_iter().map(GidEntry::from_raw).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_as_an_address() {
        let gid = Gid::from("fe80::5054:ff:fe12:3456".parse::<Ipv6Addr>().unwrap());
        assert_eq!(gid.to_string(), "fe80::5054:ff:fe12:3456");
        assert_eq!(format!("{gid:?}"), "Gid(fe80::5054:ff:fe12:3456)");
        assert_eq!(Gid::new(gid.octets()), gid);
        assert!(!gid.is_unspecified() && Gid::default().is_unspecified());
    }
}
