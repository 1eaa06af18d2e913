use nix::{
    libc::RLIM_INFINITY,
    sys::resource::{Resource, getrlimit},
};

use super::{
    finding::{Finding, as_root, counted, write_line},
    root::Root,
    surroundings::Surroundings,
};

/// The number of bytes of memory that a connection with the default configuration locks.
const CONNECTION_MEMORY: u64 = 1_269_760;

/// If the limit on locked memory is below this number of bytes, the doctor reports a warning or an
/// error, because a service usually has several connections.
const FEW: u64 = 64 << 20;

/// The subject of the finding about open files. This finding concerns all transports.
pub(super) const OF_FILES: &str = "files";

/// The bit number of CAP_IPC_LOCK in a capability mask.
const IPC_LOCK: u32 = 14;

/// The number of files that a connection keeps open.
const FILES_A_CONNECTION: u64 = 4;

/// The resource limits of this process.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    memlock: Limit,
    files: Limit,
    /// Whether this process can lock any amount of memory.
    may_lock: bool,
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    soft: u64,
    hard: u64,
}

impl Limits {
    pub(super) fn read(root: &Root) -> Self {
        let status = root.text("proc/self/status").unwrap_or_default();
        let effective = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        Self {
            memlock: Limit::get(Resource::RLIMIT_MEMLOCK),
            files: Limit::get(Resource::RLIMIT_NOFILE),
            may_lock: effective.is_some_and(|mask| mask & (1 << IPC_LOCK) != 0),
        }
    }

    pub(super) fn judge(&self, around: &Surroundings) -> Vec<Finding> {
        vec![self.judge_memory(around), self.judge_files()]
    }

    fn judge_memory(&self, around: &Surroundings) -> Finding {
        const SUBJECT: &str = "memlock";
        let Limit { soft, hard } = self.memlock;
        if self.may_lock {
            let what = "this process may lock any amount of memory (CAP_IPC_LOCK)";
            return Finding::ok(SUBJECT, what);
        }
        if soft == RLIM_INFINITY {
            return Finding::ok(SUBJECT, "any amount of memory may be locked");
        }
        // A quarter of the limit is reserved for receiving large messages.
        let fit = (soft - soft / 4) / CONNECTION_MEMORY;
        let what = format!(
            "{} of memory may be locked: room for {} of the default configuration",
            bytes(soft),
            counted(fit as usize, "connection")
        );
        if soft >= FEW {
            return Finding::ok(SUBJECT, what);
        }
        let finding = if fit == 0 {
            Finding::error(SUBJECT, what)
        } else {
            Finding::warning(SUBJECT, what)
        };
        let finding = finding.because(
            "memory that a device reads and writes must be locked, about 1.2 MiB for each \
             connection",
        );
        if around.is_container() {
            return finding.hint(
                "this is a container: run it with `--ulimit memlock=-1` (Kubernetes: raise \
                 LimitMEMLOCK of the container runtime's service)",
            );
        }
        let line = "* - memlock unlimited";
        let finding = if hard == RLIM_INFINITY {
            finding.command("ulimit -l unlimited")
        } else {
            // The command raises the limit of the shell in which it runs. Later commands in that
            // shell inherit the limit.
            finding.command(as_root("prlimit --memlock=unlimited --pid $$"))
        };
        finding
            .keep(write_line(line, "/etc/security/limits.d/rdmsg.conf"))
            .hint("for a systemd service, set LimitMEMLOCK=infinity in its unit instead")
    }

    pub(super) fn judge_files(&self) -> Finding {
        const SUBJECT: &str = OF_FILES;
        let Limit { soft, hard } = self.files;
        let fit = soft / FILES_A_CONNECTION;
        let what =
            format!("this process may open {soft} files, enough for about {fit} connections");
        if soft >= 512 {
            return Finding::ok(SUBJECT, what);
        }
        let finding = Finding::warning(SUBJECT, what)
            .because("each connection uses several file descriptors");
        if hard > soft {
            finding.command(format!("ulimit -n {hard}"))
        } else {
            finding.command(as_root("prlimit --nofile=65536 --pid $$"))
        }
    }
}

impl Limit {
    fn get(resource: Resource) -> Self {
        // `getrlimit` fails only for an unknown resource.
        let (soft, hard) = getrlimit(resource).unwrap_or((RLIM_INFINITY, RLIM_INFINITY));
        Self { soft, hard }
    }
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576.. => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{distribution::Distribution, finding::State},
        *,
    };

    fn judged(soft: u64, hard: u64, may_lock: bool, is_container: bool) -> Finding {
        let limits = Limits {
            memlock: Limit { soft, hard },
            files: Limit {
                soft: 1024,
                hard: 1024,
            },
            may_lock,
        };
        let around = Surroundings::of(Distribution::Debian, is_container);
        let mut findings = limits.judge(&around);
        assert_eq!(findings[1].state, State::Ok);
        findings.remove(0)
    }

    #[test]
    fn lock_limit_is_judged_by_connections_that_fit() {
        let small = judged(64 << 10, 64 << 10, false, false);
        assert_eq!(small.state, State::Error);
        assert!(small.what.starts_with("64 KiB"), "{}", small.what);
        assert_eq!(
            small.commands,
            [as_root("prlimit --memlock=unlimited --pid $$")]
        );
        let usual = judged(8 << 20, RLIM_INFINITY, false, false);
        assert_eq!(usual.state, State::Warning);
        assert!(
            usual.what.contains("room for 4 connections"),
            "{}",
            usual.what
        );
        assert_eq!(usual.commands, ["ulimit -l unlimited"]);
        for (soft, may_lock) in [(64 << 10, true), (RLIM_INFINITY, false), (FEW, false)] {
            assert_eq!(judged(soft, soft, may_lock, false).state, State::Ok);
        }
    }

    #[test]
    fn connection_memory_is_that_of_the_documented_default() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/config.rs");
        let row = format!("| the default: 32, 16, 16 KiB | {CONNECTION_MEMORY} |");
        assert!(std::fs::read_to_string(page).unwrap().contains(&row));
    }

    #[test]
    fn a_containers_limit_is_its_runtimes() {
        let finding = judged(8 << 20, 8 << 20, false, true);
        assert!(finding.commands.is_empty());
        assert!(finding.hint.unwrap().contains("--ulimit memlock=-1"));
    }
}
