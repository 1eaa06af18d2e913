use std::{fs, path::Path};

use common::apart::run_in_own_process;
use rdmsg::{Endpoint, Listener};

/// Returns the names of the threads that the library has started in this process.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
    names.filter(|name| name.starts_with("rdmsg")).collect()
}

/// Returns the sockets of this process.
fn sockets() -> Vec<String> {
    let fds = fs::read_dir("/proc/self/fd").unwrap();
    let targets = fds.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    let sockets = targets.filter(|target| Path::new(target).to_string_lossy().contains("socket:"));
    sockets.map(|target| target.display().to_string()).collect()
}

#[test]
fn connections_need_no_thread_and_no_socket() {
    run_in_own_process("needs::connections_need_no_thread_and_no_socket", || {
        let before = sockets();
        let listener = Listener::bind("memory://needs nothing").unwrap();
        let named = Endpoint::connect("memory://needs nothing").unwrap();
        let accepted = listener.accept().unwrap();
        let (near, far) = Endpoint::pair().unwrap();
        for (from, to) in [(&named, &accepted), (&near, &far)] {
            from.send(&pattern::sequence(0, 2 << 20)).unwrap();
            assert_eq!(to.recv().unwrap().len(), 2 << 20);
        }
        near.close().unwrap();
        assert_eq!(threads(), [""; 0]);
        assert_eq!(sockets(), before);
    });
}
