//! Controls a preloaded library. The library replaces C functions, makes their calls fail on
//! request, and records values of the calls.

use std::{
    env,
    ffi::{CStr, CString, c_char, c_int, c_long},
    mem,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use crate::apart::in_process_of;

type FailCall = unsafe extern "C" fn(*const c_char, c_long);
type HasFailed = unsafe extern "C" fn() -> c_int;
type TakeNotes = unsafe extern "C" fn(*const c_char, *mut c_long) -> c_long;
type LimitInline = unsafe extern "C" fn(c_long);
type AnswerDomains = unsafe extern "C" fn(c_long, c_long);
type SetNodeFile = unsafe extern "C" fn(*const c_char);

/// The control functions of the preloaded library.
pub(crate) struct Calls {
    fail_call: FailCall,
    has_failed: HasFailed,
    take_notes: TakeNotes,
    limit_inline: LimitInline,
    refuse_relaxed: LimitInline,
    answer_domains: AnswerDomains,
    set_node_file: SetNodeFile,
    keep_bounds: LimitInline,
}

/// The maximum number of values that the library records.
const MAX_NOTES: usize = 1024;

/// Runs `body` in a separate process with the preloaded library. `name` is the name of the calling
/// test.
pub(crate) fn with_preload(name: &str, body: impl FnOnce()) {
    let mut command = Command::new(env::current_exe().unwrap());
    if env::var_os("LD_PRELOAD").is_none() {
        static LIBRARY: LazyLock<PathBuf> = LazyLock::new(build);
        command.env("LD_PRELOAD", &*LIBRARY);
    }
    in_process_of(command, name, body);
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
        let (fail_call, has_failed) = (find(c"fail_call"), find(c"has_failed"));
        let (take_notes, limit_inline) = (find(c"take_notes"), find(c"limit_inline"));
        let refuse_relaxed = find(c"refuse_relaxed");
        let (answer_domains, set_node_file) = (find(c"answer_domains"), find(c"set_node_file"));
        let keep_bounds = find(c"keep_bounds");
        Self {
            // SAFETY: `fail_call` has the type `FailCall` in calls.c.
            fail_call: unsafe { mem::transmute::<*mut libc::c_void, FailCall>(fail_call) },
            // SAFETY: `has_failed` has the type `HasFailed` in calls.c.
            has_failed: unsafe { mem::transmute::<*mut libc::c_void, HasFailed>(has_failed) },
            // SAFETY: `take_notes` has the type `TakeNotes` in calls.c.
            take_notes: unsafe { mem::transmute::<*mut libc::c_void, TakeNotes>(take_notes) },
            // SAFETY: `limit_inline` has the type `LimitInline` in calls.c.
            limit_inline: unsafe { mem::transmute::<*mut libc::c_void, LimitInline>(limit_inline) },
            // SAFETY: `refuse_relaxed` has the type `LimitInline` in calls.c.
            refuse_relaxed: unsafe {
                mem::transmute::<*mut libc::c_void, LimitInline>(refuse_relaxed)
            },
            // SAFETY: `answer_domains` has the type `AnswerDomains` in calls.c.
            answer_domains: unsafe {
                mem::transmute::<*mut libc::c_void, AnswerDomains>(answer_domains)
            },
            // SAFETY: `set_node_file` has the type `SetNodeFile` in calls.c.
            set_node_file: unsafe {
                mem::transmute::<*mut libc::c_void, SetNodeFile>(set_node_file)
            },
            // SAFETY: `keep_bounds` has the type `LimitInline` in calls.c.
            keep_bounds: unsafe { mem::transmute::<*mut libc::c_void, LimitInline>(keep_bounds) },
        }
    }

    /// Returns the values that the library has recorded for calls of `function`. Also clears the
    /// recorded values of all functions.
    pub(crate) fn notes(&self, function: &str) -> Vec<i64> {
        let name = CString::new(function).unwrap();
        let mut values = vec![0; MAX_NOTES];
        // SAFETY: `name` is a C string, and `values` has room for all recorded values.
        let count = unsafe { (self.take_notes)(name.as_ptr(), values.as_mut_ptr()) };
        values.truncate(usize::try_from(count).unwrap());
        values
    }

    /// Clears the recorded values of all functions.
    pub(crate) fn clear_notes(&self) {
        self.notes("");
    }

    /// Makes the device refuse queue pairs with more than `bytes` bytes of inline data.
    pub(crate) fn limit_inline(&self, bytes: i64) {
        // SAFETY: the function has no preconditions.
        unsafe { (self.limit_inline)(bytes) };
    }

    /// Makes the device check that READs are within memory windows. Must be called before rdmsg
    /// opens the device, because rdmsg then tests the windows of the device.
    pub(crate) fn keep_bounds(&self) {
        // SAFETY: the function has no preconditions.
        unsafe { (self.keep_bounds)(1) };
    }

    /// Makes the device refuse relaxed ordering.
    pub(crate) fn refuse_relaxed(&self) {
        // SAFETY: the function has no preconditions.
        unsafe { (self.refuse_relaxed)(1) };
    }

    /// Sets the driver's replies to requests for thread domains and for parent domains: 0 grants a
    /// request, and other values are error numbers.
    pub(crate) fn answer_domains(&self, thread_domain: i32, parent_domain: i32) {
        // SAFETY: the function has no preconditions.
        unsafe { (self.answer_domains)(thread_domain.into(), parent_domain.into()) };
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

    /// Makes all later calls succeed. Returns true if the call that was chosen with
    /// [`fail`](Self::fail) has failed.
    pub(crate) fn have_failed(&self) -> bool {
        // SAFETY: the function has no preconditions.
        unsafe { (self.has_failed)() != 0 }
    }
}
