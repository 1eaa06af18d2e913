//! Tests of the descriptors that programs inherit from the process that starts them.

use std::{
    collections::BTreeSet,
    os::{fd::RawFd, unix::process::CommandExt},
    process::Command,
};

use rdmsg::{Group, Interest};

use crate::stage::{TIME_LIMIT, bind, exchange, pair, run_in_own_process};

/// Runs a command that prints its open descriptors. Returns the printed descriptors.
fn inherited(command: &mut Command) -> BTreeSet<RawFd> {
    let output = command.output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace()
        .map(|fd| fd.parse().unwrap())
        .collect()
}

fn list_descriptors() -> Command {
    let mut command = Command::new("/bin/sh");
    // The shell expands the glob itself, so no other program opens descriptors.
    command.args(["-c", "cd /proc/$$/fd && echo *"]);
    command
}

#[test]
fn exec_inherits_no_descriptor_and_parent_continues() {
    run_in_own_process(
        module_path!(),
        "exec_inherits_no_descriptor_and_parent_continues",
        || {
            let before = inherited(&mut list_descriptors());
            let listener = bind();
            let (client, server) = pair(&listener);
            let group = Group::new();
            let (grouped, _other) = pair(&listener);
            group.add(&grouped).unwrap();
            for interest in [Interest::Readable, Interest::Writable] {
                client.event_fd(interest).unwrap();
            }
            listener.event_fd().unwrap();
            client.send(&vec![1; 3_000_000]).unwrap();
            assert_eq!(server.recv_timeout(TIME_LIMIT).unwrap().len(), 3_000_000);
            // Without `pre_exec`, `Command` uses posix_spawn(3).
            assert_eq!(inherited(&mut list_descriptors()), before);
            exchange(&client, &server);
            let mut command = list_descriptors();
            // SAFETY: the closure does nothing.
            unsafe { command.pre_exec(|| Ok(())) };
            // With `pre_exec`, `Command` uses fork(2) and execve(2).
            assert_eq!(inherited(&mut command), before);
            exchange(&client, &server);
            client.close().unwrap();
        },
    );
}
