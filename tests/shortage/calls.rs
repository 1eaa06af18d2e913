//! Controls a preloaded library. The library replaces C functions, makes their calls fail or block
//! on request, and records values of the calls.

use std::{
    env,
    ffi::{CStr, CString, c_char, c_int, c_long},
    mem,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::Command,
    ptr,
    sync::LazyLock,
};

use common::apart::run_in_process_of;

type FailCall = unsafe extern "C" fn(*const c_char, c_long);
type BlockCalls = unsafe extern "C" fn(*const c_char);
type BlockedCalls = unsafe extern "C" fn() -> c_long;
type TakeFailed = unsafe extern "C" fn() -> c_int;
type TakeRecorded = unsafe extern "C" fn(*const c_char, *mut c_long) -> c_long;
type SetValue = unsafe extern "C" fn(c_long);
type SetDomainReplies = unsafe extern "C" fn(c_long, c_long);
type SetNodeFile = unsafe extern "C" fn(*const c_char);

/// The control functions of the preloaded library.
pub(crate) struct Calls {
    fail_call: FailCall,
    take_failed: TakeFailed,
    block_calls: BlockCalls,
    blocked_calls: BlockedCalls,
    take_recorded: TakeRecorded,
    limit_inline: SetValue,
    refuse_relaxed: SetValue,
    set_domain_replies: SetDomainReplies,
    set_node_file: SetNodeFile,
    check_window_bounds: SetValue,
}

/// The maximum number of values that the library records.
const MAX_RECORDED: usize = 1024;

/// Runs `body` in a separate process with the preloaded library. `name` is the name of the calling
/// test.
pub(crate) fn with_preload(name: &str, body: impl FnOnce()) {
    let mut command = Command::new(env::current_exe().unwrap());
    if env::var_os("LD_PRELOAD").is_none() {
        static LIBRARY: LazyLock<PathBuf> = LazyLock::new(build);
        command.env("LD_PRELOAD", &*LIBRARY);
    }
    run_in_process_of(command, name, body);
}

/// Compiles the library, which all tests of this process share. Returns the path of the library.
fn build() -> PathBuf {
    let library = env::temp_dir().join(format!("rdmsg-calls-{}.so", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/shortage/calls.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-o"])
        .args([library.as_path(), source.as_ref()])
        .args(["-ldl", "-lpthread"])
        .status()
        .unwrap();
    assert!(built.success());
    library
}

impl Calls {
    pub(crate) fn loaded() -> Self {
        let find = |name: &CStr| {
            // SAFETY: the name is a C string.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert!(!found.is_null(), "{name:?}");
            found
        };
        let (fail_call, take_failed) = (find(c"fail_call"), find(c"take_failed"));
        let (block_calls, blocked_calls) = (find(c"block_calls"), find(c"blocked_calls"));
        let (take_recorded, limit_inline) = (find(c"take_recorded"), find(c"limit_inline"));
        let refuse_relaxed = find(c"refuse_relaxed");
        let (set_domain_replies, set_node_file) =
            (find(c"set_domain_replies"), find(c"set_node_file"));
        let check_window_bounds = find(c"check_window_bounds");
        Self {
            // SAFETY: `fail_call` has the type `FailCall` in calls.c.
            fail_call: unsafe { mem::transmute::<*mut libc::c_void, FailCall>(fail_call) },
            // SAFETY: `take_failed` has the type `TakeFailed` in calls.c.
            take_failed: unsafe { mem::transmute::<*mut libc::c_void, TakeFailed>(take_failed) },
            // SAFETY: `block_calls` has the type `BlockCalls` in calls.c.
            block_calls: unsafe { mem::transmute::<*mut libc::c_void, BlockCalls>(block_calls) },
            // SAFETY: `blocked_calls` has the type `BlockedCalls` in calls.c.
            blocked_calls: unsafe {
                mem::transmute::<*mut libc::c_void, BlockedCalls>(blocked_calls)
            },
            // SAFETY: `take_recorded` has the type `TakeRecorded` in calls.c.
            take_recorded: unsafe {
                mem::transmute::<*mut libc::c_void, TakeRecorded>(take_recorded)
            },
            // SAFETY: `limit_inline` has the type `SetValue` in calls.c.
            limit_inline: unsafe { mem::transmute::<*mut libc::c_void, SetValue>(limit_inline) },
            // SAFETY: `refuse_relaxed` has the type `SetValue` in calls.c.
            refuse_relaxed: unsafe {
                mem::transmute::<*mut libc::c_void, SetValue>(refuse_relaxed)
            },
            // SAFETY: `set_domain_replies` has the type `SetDomainReplies` in calls.c.
            set_domain_replies: unsafe {
                mem::transmute::<*mut libc::c_void, SetDomainReplies>(set_domain_replies)
            },
            // SAFETY: `set_node_file` has the type `SetNodeFile` in calls.c.
            set_node_file: unsafe {
                mem::transmute::<*mut libc::c_void, SetNodeFile>(set_node_file)
            },
            // SAFETY: `check_window_bounds` has the type `SetValue` in calls.c.
            check_window_bounds: unsafe {
                mem::transmute::<*mut libc::c_void, SetValue>(check_window_bounds)
            },
        }
    }

    /// Returns the values that the library has recorded for calls of `function`. Also clears the
    /// recorded values of all functions.
    pub(crate) fn take_recorded(&self, function: &str) -> Vec<i64> {
        let name = CString::new(function).unwrap();
        let mut values = vec![0; MAX_RECORDED];
        // SAFETY: `name` is a C string, and `values` has room for all recorded values.
        let count = unsafe { (self.take_recorded)(name.as_ptr(), values.as_mut_ptr()) };
        values.truncate(usize::try_from(count).unwrap());
        values
    }

    /// Clears the recorded values of all functions.
    pub(crate) fn clear_recorded(&self) {
        self.take_recorded("");
    }

    /// Makes the device refuse queue pairs with more than `bytes` bytes of inline data.
    pub(crate) fn limit_inline(&self, bytes: i64) {
        // SAFETY: the function has no preconditions.
        unsafe { (self.limit_inline)(bytes) };
    }

    /// Makes the device check that READs are within memory windows. Must be called before rdmsg
    /// opens the device, because rdmsg then tests the windows of the device.
    pub(crate) fn check_window_bounds(&self) {
        // SAFETY: the function has no preconditions.
        unsafe { (self.check_window_bounds)(1) };
    }

    /// Makes the device refuse relaxed ordering.
    pub(crate) fn refuse_relaxed(&self) {
        // SAFETY: the function has no preconditions.
        unsafe { (self.refuse_relaxed)(1) };
    }

    /// Sets the driver's replies to requests for thread domains and for parent domains: 0 grants a
    /// request, and other values are error numbers.
    pub(crate) fn set_domain_replies(&self, thread_domain: i32, parent_domain: i32) {
        // SAFETY: the function has no preconditions.
        unsafe { (self.set_domain_replies)(thread_domain.into(), parent_domain.into()) };
    }

    /// Redirects reads of each device's NUMA node file to `file`.
    pub(crate) fn set_node_file(&self, file: &Path) {
        // Never free the name, because other threads can read it at any time.
        let file = CString::new(file.as_os_str().as_bytes()).unwrap();
        // SAFETY: the text is a C string that is never freed.
        unsafe { (self.set_node_file)(file.into_raw()) };
    }

    /// Makes one later call of `function` fail. `number` selects the call: 1 is the next call.
    pub(crate) fn fail(&self, function: &str, number: i64) {
        // Never free the name, because other threads can read it at any time.
        let name = CString::new(function).unwrap().into_raw();
        // SAFETY: the text is a C string that is never freed.
        unsafe { (self.fail_call)(name, number) };
    }

    /// Makes each later call of `function` block until [`unblock`](Self::unblock) is called.
    pub(crate) fn block(&self, function: &str) {
        // Never free the name, because other threads can read it at any time.
        let name = CString::new(function).unwrap().into_raw();
        // SAFETY: the text is a C string that is never freed.
        unsafe { (self.block_calls)(name) };
    }

    /// Returns the number of calls that are blocked.
    pub(crate) fn blocked(&self) -> i64 {
        // SAFETY: the function has no preconditions.
        unsafe { (self.blocked_calls)() }
    }

    /// Ends the blocking of calls.
    pub(crate) fn unblock(&self) {
        // SAFETY: the function accepts a null pointer.
        unsafe { (self.block_calls)(ptr::null()) };
    }

    /// Makes all later calls succeed. Returns true if the call that was chosen with
    /// [`fail`](Self::fail) has failed.
    pub(crate) fn take_failed(&self) -> bool {
        // SAFETY: the function has no preconditions.
        unsafe { (self.take_failed)() != 0 }
    }
}
