use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit on open files to the hard limit, and returns the limit.
pub(crate) fn raise_open_files() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return u64::MAX;
    };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(error) => {
            log::warn!("cannot raise the limit on open files above {soft}: {error}");
            soft
        }
    }
}
