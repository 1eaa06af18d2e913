//! Conversion of socket addresses between [`std::net`] and C.
#![allow(unsafe_code)]

use std::{
    mem::MaybeUninit,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    ptr,
};

/// Converts an address to the C structure. C functions require a `*mut libc::sockaddr`, so the
/// caller casts a pointer to the result.
pub(crate) fn from_std(addr: SocketAddr) -> libc::sockaddr_storage {
    let mut storage = zeroed();
    let start = &raw mut storage;
    match addr {
        SocketAddr::V4(addr) => {
            let sin = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: addr.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(addr.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: `start` points to a `sockaddr_storage`, which POSIX defines as sufficiently
            // large and aligned for every socket address.
            unsafe { start.cast::<libc::sockaddr_in>().write(sin) };
        }
        SocketAddr::V6(addr) => {
            let sin6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: addr.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: addr.ip().octets(),
                },
                sin6_scope_id: addr.scope_id(),
            };
            // SAFETY: `start` points to a `sockaddr_storage`, which POSIX defines as sufficiently
            // large and aligned for every socket address.
            unsafe { start.cast::<libc::sockaddr_in6>().write(sin6) };
        }
    }
    storage
}

/// Converts an address from the C structure. Returns `None` if the family is neither IPv4 nor IPv6.
///
/// An address that was not set has the family `AF_UNSPEC`, so the result is `None`.
pub(crate) fn to_std(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let start = ptr::from_ref(storage);
    match family(storage) {
        libc::AF_INET => {
            // SAFETY: `start` points to a `sockaddr_storage`, which is sufficiently large and
            // aligned for every socket address. Every bit pattern is a valid `sockaddr_in`.
            let sin = unsafe { start.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(sin.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: `start` points to a `sockaddr_storage`, which is sufficiently large and
            // aligned for every socket address. Every bit pattern is a valid `sockaddr_in6`.
            let sin6 = unsafe { start.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
            let port = u16::from_be(sin6.sin6_port);
            Some(SocketAddrV6::new(ip, port, sin6.sin6_flowinfo, sin6.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Converts an address in memory that C code owns. Returns `None` if `addr` is null, if the family
/// is neither IPv4 nor IPv6, or if `len` is too short for the family.
///
/// # Safety
///
/// `addr` is null or valid for reads of `len` bytes.
pub(crate) unsafe fn from_ptr(addr: *const libc::sockaddr, len: usize) -> Option<SocketAddr> {
    if addr.is_null() {
        return None;
    }
    let mut storage = zeroed();
    let len = len.min(size_of_val(&storage));
    // SAFETY: the caller guarantees that `addr` is valid for reads of `len` bytes. `storage` is a
    // local variable of at least `len` bytes.
    unsafe { ptr::copy_nonoverlapping(addr.cast::<u8>(), (&raw mut storage).cast(), len) };
    let needed = match family(&storage) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        _ => size_of::<libc::sockaddr_in6>(),
    };
    if len < needed { None } else { to_std(&storage) }
}

fn family(storage: &libc::sockaddr_storage) -> libc::c_int {
    libc::c_int::from(storage.ss_family)
}

fn zeroed() -> libc::sockaddr_storage {
    // SAFETY: `sockaddr_storage` consists of integers, for which all zeros is a valid value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in [
            "192.0.2.7:18515",
            "0.0.0.0:0",
            "[2001:db8::7]:65535",
            "[fe80::1%3]:1",
        ] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(to_std(&from_std(addr)), Some(addr), "{text}");
        }
        let flow = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 5, 0x1234, 9).into();
        assert_eq!(to_std(&from_std(flow)), Some(flow));
    }

    #[test]
    fn bytes_are_in_network_order() {
        let storage = from_std("192.0.2.7:258".parse().unwrap());
        // SAFETY: `storage` consists of more than 8 bytes, and all of them were initialised by
        // `zeroed`.
        let bytes: &[u8; 8] = unsafe { &*(&raw const storage).cast() };
        assert_eq!(bytes[2..], [1, 2, 192, 0, 2, 7]);
    }

    #[test]
    fn an_unset_address_is_none() {
        assert_eq!(to_std(&zeroed()), None);
        // SAFETY: `from_ptr` accepts null.
        assert_eq!(unsafe { from_ptr(ptr::null(), 16) }, None);
    }

    #[test]
    fn a_short_address_is_none() {
        let addr = "[2001:db8::7]:1".parse().unwrap();
        let storage = from_std(addr);
        let ptr = (&raw const storage).cast();
        // SAFETY: `storage` is longer than 27 bytes.
        assert_eq!(unsafe { from_ptr(ptr, 27) }, None);
        // SAFETY: `storage` is at least 28 bytes long.
        assert_eq!(unsafe { from_ptr(ptr, 28) }, Some(addr));
    }
}
