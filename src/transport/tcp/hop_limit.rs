use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::socket::{GetSockOpt, SetSockOpt, getsockopt, setsockopt, sockopt};

use super::completion_queue::CompletionEvents;
use crate::{os::failed, status::OsError};

/// The limit of hops in the packets of one connection: IPv4 calls it the time to live.
#[derive(Debug)]
pub(crate) struct HopLimit<'a>(BorrowedFd<'a>);

impl<'a> HopLimit<'a> {
    pub(crate) fn of(events: &'a CompletionEvents) -> Self {
        Self(events.as_fd())
    }

    /// Returns the limit. A socket of IPv6 has one limit for each version of IP, and IPv4 carries
    /// the packets if the peer's address is one of IPv4 in disguise.
    pub(crate) fn get(&self, over_ipv6: bool) -> Result<u32, OsError> {
        let hops = if over_ipv6 {
            self.option(sockopt::Ipv6Ttl)?
        } else {
            self.option(sockopt::Ipv4Ttl)?
        };
        Ok(hops.cast_unsigned())
    }

    /// Sets the limit: 1 to 255.
    pub(crate) fn set(&self, hops: u32, over_ipv6: bool) -> Result<(), OsError> {
        // A negative number stands for the default of the system.
        let hops = i32::try_from(hops).map_err(|_| OsError::new("setsockopt", libc::EINVAL))?;
        // The system refuses 0 for IPv4 alone.
        self.set_option(sockopt::Ipv4Ttl, hops)?;
        if over_ipv6 {
            self.set_option(sockopt::Ipv6Ttl, hops)?;
        }
        Ok(())
    }

    fn option(&self, option: impl GetSockOpt<Val = i32>) -> Result<i32, OsError> {
        getsockopt(&self.0, option).map_err(failed("getsockopt"))
    }

    fn set_option(&self, option: impl SetSockOpt<Val = i32>, hops: i32) -> Result<(), OsError> {
        let set = setsockopt(&self.0, option, &hops);
        set.map_err(failed("setsockopt"))
    }
}
