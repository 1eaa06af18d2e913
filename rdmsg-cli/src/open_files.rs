use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Lets this process open as many files as it may. Returns how many that are.
pub(crate) fn raise_open_files() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return u64::MAX;
    };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(error) => {
            log::warn!("no more than {soft} files can be open: {error}");
            soft
        }
    }
}
