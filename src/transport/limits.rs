use std::fs;

use nix::sys::resource::{Resource, getrlimit};

use crate::{
    machine::usable_memory,
    proto::{LONGEST_CHUNK, SHORTEST_CHUNK},
};

/// Limits for the memory that an [`Engine`](crate::Engine) uses for its peers' large messages.
///
/// All connections of the engine share these limits. A message above the eager size is announced
/// before its bytes are transferred, and the peer can announce messages at no cost. So the engine
/// allocates memory only as bytes arrive, and within these limits. Connections that reach a limit
/// wait in a fair order. No message is lost, because the peer's `send` waits too.
/// [`Config::large_memory`](crate::Config::large_memory) limits the share of one connection.
///
/// The defaults depend on the process's limit on locked memory and on the usable memory. The usable
/// memory is the memory of the machine, or the limit of the control group (`memory.max`,
/// `memory.limit_in_bytes`) if this limit is lower. All engines from
/// [`Engine::new`](crate::Engine::new) and [`Engine::shared`](crate::Engine::shared) share one
/// budget with the default limits. The defaults are computed when the first of these engines is
/// started.
///
/// # Examples
///
/// ```no_run
/// # fn main() -> Result<(), rdmsg::Error> {
/// let mut limits = rdmsg::EngineLimits::default();
/// limits.held = 256 << 20;
/// let engine = rdmsg::Engine::with_limits(limits)?;
/// # Ok(())
/// # }
/// ```
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineLimits {
    /// The maximum number of bytes that are pinned at a time to receive large messages.
    ///
    /// Half of this memory is for chunks of messages. Each chunk is pinned only during its
    /// transfer. The other half is for memory that connections keep registered for later messages
    /// ([`Config::registration_cache`](crate::Config::registration_cache)). If the value is below 8
    /// MiB, messages are transferred in chunks that are shorter than the usual 1 MiB. Any value
    /// works: one chunk of at most 64 KiB can always be transferred.
    ///
    /// Default: a quarter of the limit on locked memory (`ulimit -l`), but at most an eighth of the
    /// usable memory, so that memory remains for the buffers of connections.
    #[cfg_attr(feature = "serde", serde(with = "crate::config::as_number"))]
    pub pinned: u64,

    /// The maximum number of bytes of messages that are being transferred, or were received and not
    /// yet dropped.
    ///
    /// Bytes of [`Stream`](crate::Stream)s that the application has not read are included. They use
    /// at most half of this memory.
    ///
    /// The bytes of a message are charged as they arrive, in chunks of up to 1 MiB. The
    /// messages of one host use at most three quarters of this memory. An eighth is a reserve for
    /// messages of up to 64 KiB. Such messages use the reserve when the other seven eighths are
    /// full. The later chunks of messages may exceed these limits by an eighth. One message at a
    /// time may exceed them by more until it is complete, so that partial messages cannot block
    /// each other.
    ///
    /// Default: a quarter of the usable memory.
    #[cfg_attr(feature = "serde", serde(with = "crate::config::as_number"))]
    pub held: u64,
}

impl Default for EngineLimits {
    fn default() -> Self {
        let memory = usable_memory();
        let lockable = if may_lock_anything() {
            u64::MAX
        } else {
            // If the limit cannot be read, the amount of lockable memory is treated as unlimited.
            getrlimit(Resource::RLIMIT_MEMLOCK).map_or(u64::MAX, |(soft, _)| soft)
        };
        Self::of(memory, lockable)
    }
}

impl EngineLimits {
    pub(crate) fn of(memory: u64, lockable: u64) -> Self {
        Self {
            pinned: (lockable / 4).min(memory / 8),
            held: memory / 4,
        }
    }

    /// Returns the maximum number of bytes that are pinned for reads in progress.
    pub(crate) fn pinned_for_reads(&self) -> u64 {
        self.pinned - self.pinned_for_keeping()
    }

    /// Returns the maximum number of bytes that stay pinned between reads.
    pub(crate) fn pinned_for_keeping(&self) -> u64 {
        self.pinned / 2
    }

    /// Returns the number of bytes of `held` that are reserved for short messages.
    pub(crate) fn held_by_short(&self) -> u64 {
        self.held / 8
    }

    /// Returns the maximum length of a chunk in bytes. A chunk of 64 KiB is always allowed. A
    /// longer chunk uses at most a quarter of the memory that may be pinned for reads, so that
    /// several connections can read at the same time.
    pub(crate) fn longest_chunk(&self) -> u64 {
        let share = self.pinned_for_reads() / 4;
        let power = share.checked_ilog2().map_or(1, |log| 1 << log);
        power.clamp(SHORTEST_CHUNK, LONGEST_CHUNK)
    }
}

/// Returns true if the limit on locked memory does not apply to the process. This is the case if
/// the process has `CAP_IPC_LOCK` in the initial user namespace.
fn may_lock_anything() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let namespace = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    has_ipc_lock(&status) && is_first_namespace(&namespace)
}

fn has_ipc_lock(status: &str) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|caps| u64::from_str_radix(caps.trim(), 16).ok())
        .is_some_and(|caps| caps & 1 << CAP_IPC_LOCK != 0)
}

fn is_first_namespace(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_leave_room() {
        let gib = 1 << 30;
        let limits = EngineLimits::of(2 * gib, u64::MAX);
        assert_eq!((limits.pinned, limits.held), (gib / 4, gib / 2));
        assert_eq!(limits.longest_chunk(), LONGEST_CHUNK);
        // systemd limits locked memory to 8 MiB by default.
        let limits = EngineLimits::of(16 * gib, 8 << 20);
        assert_eq!(limits.pinned, 2 << 20);
        assert_eq!(limits.longest_chunk(), 256 << 10);
        let limits = EngineLimits::of(16 * gib, 0);
        assert_eq!(limits.longest_chunk(), SHORTEST_CHUNK);
        let default = EngineLimits::default();
        assert!(
            default.held > 0,
            "the default limits must allow messages: {default:?}"
        );
    }

    #[test]
    fn the_capability_counts_in_the_first_namespace_alone() {
        assert!(has_ipc_lock("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!has_ipc_lock("CapEff:\t00000000a80425fb\n"));
        assert!(!has_ipc_lock(""));
        assert!(is_first_namespace("         0          0 4294967295\n"));
        assert!(!is_first_namespace("0 1000 1\n1 100000 65536\n"));
        assert!(!is_first_namespace(""));
    }
}
