//! Makes C functions fail on request. A preloaded library defines these functions.

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

/// The functions of the preloaded library.
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

/// The maximum number of notes that the library keeps.
const MOST_NOTES: usize = 1024;

/// Runs `body` in a process of its own, with the library preloaded. `name` is the name of the
/// calling test.
pub(crate) fn in_front(name: &str, body: impl FnOnce()) {
    let mut command = Command::new(env::current_exe().unwrap());
    if env::var_os("LD_PRELOAD").is_none() {
        static LIBRARY: LazyLock<PathBuf> = LazyLock::new(build);
        command.env("LD_PRELOAD", &*LIBRARY);
    }
    in_process_of(command, name, body);
}

/// Builds the library for all tests of this process.
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
            // SAFETY: the function has this type.
            fail_call: unsafe { mem::transmute::<*mut libc::c_void, FailCall>(fail_call) },
            // SAFETY: the function has this type.
            has_failed: unsafe { mem::transmute::<*mut libc::c_void, HasFailed>(has_failed) },
            // SAFETY: the function has this type.
            take_notes: unsafe { mem::transmute::<*mut libc::c_void, TakeNotes>(take_notes) },
            // SAFETY: the function has this type.
            limit_inline: unsafe { mem::transmute::<*mut libc::c_void, LimitInline>(limit_inline) },
            // SAFETY: the function has this type.
            refuse_relaxed: unsafe {
                mem::transmute::<*mut libc::c_void, LimitInline>(refuse_relaxed)
            },
            // SAFETY: the function has this type.
            answer_domains: unsafe {
                mem::transmute::<*mut libc::c_void, AnswerDomains>(answer_domains)
            },
            // SAFETY: the function has this type.
            set_node_file: unsafe {
                mem::transmute::<*mut libc::c_void, SetNodeFile>(set_node_file)
            },
            // SAFETY: the function has this type.
            keep_bounds: unsafe { mem::transmute::<*mut libc::c_void, LimitInline>(keep_bounds) },
        }
    }

    /// Returns the values that the library has noted of the calls of `function`, and clears all
    /// notes.
    pub(crate) fn notes(&self, function: &str) -> Vec<i64> {
        let name = CString::new(function).unwrap();
        let mut values = vec![0; MOST_NOTES];
        // SAFETY: the name is a C string, and there is room for all notes.
        let count = unsafe { (self.take_notes)(name.as_ptr(), values.as_mut_ptr()) };
        values.truncate(usize::try_from(count).unwrap());
        values
    }

    /// Clears the notes of all functions.
    pub(crate) fn clear_notes(&self) {
        self.notes("");
    }

    /// Makes the device refuse queue pairs with more than `bytes` bytes of inline data.
    pub(crate) fn limit_inline(&self, bytes: i64) {
        // SAFETY: the function has no preconditions.
        unsafe { (self.limit_inline)(bytes) };
    }

    /// Makes the device keep READs within memory windows. The caller has created no queue pair yet.
    pub(crate) fn keep_bounds(&self) {
        // SAFETY: the function has no preconditions.
        unsafe { (self.keep_bounds)(1) };
    }

    /// Makes the device refuse relaxed ordering.
    pub(crate) fn refuse_relaxed(&self) {
        // SAFETY: the function has no preconditions.
        unsafe { (self.refuse_relaxed)(1) };
    }

    /// Chooses the provider's answers to requests for thread domains and for parent domains: 0
    /// grants them, and other values are error numbers.
    pub(crate) fn answer_domains(&self, thread_domain: i32, parent_domain: i32) {
        // SAFETY: the function has no preconditions.
        unsafe { (self.answer_domains)(thread_domain.into(), parent_domain.into()) };
    }

    /// Makes the content of this file the NUMA node of each device.
    pub(crate) fn set_node_file(&self, file: &Path) {
        // The name is never freed, because other threads can read it at any time.
        let file = CString::new(file.as_os_str().as_bytes()).unwrap();
        // SAFETY: the text is a C string that is never freed.
        unsafe { (self.set_node_file)(file.into_raw()) };
    }

    /// Makes one call of `function` fail, namely the call with this number, counted from 1.
    pub(crate) fn fail(&self, function: &str, number: i64) {
        // The name is never freed, because other threads can read it at any time.
        let name = CString::new(function).unwrap().into_raw();
        // SAFETY: the text is a C string that is never freed.
        unsafe { (self.fail_call)(name, number) };
    }

    /// Lets all further calls succeed. Returns whether the call that [`fail`](Self::fail) chose was
    /// made, and therefore failed.
    pub(crate) fn have_failed(&self) -> bool {
        // SAFETY: the function has no preconditions.
        unsafe { (self.has_failed)() != 0 }
    }
}
