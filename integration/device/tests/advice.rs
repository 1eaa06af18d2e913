//! Tests the errors that new users see most often. Each error must name the fault in the machine's
//! setup and the remedy.

use std::{
    fs::{self, Permissions},
    io,
    net::{IpAddr, SocketAddr},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Command, Output, Stdio},
};

use rdmsg::{Endpoint, Error, Listener};
use toolbox::DeviceTest;

/// The user id of an unprivileged user.
const UNPRIVILEGED_UID: u32 = 65534;

/// Returns a command that runs an example program.
fn example(name: &str) -> Command {
    let mut command = Command::new(toolbox::example(name));
    command.stdin(Stdio::null());
    command
}

/// Asserts that a command has failed with status 1, and that its stderr contains all expected
/// texts.
fn assert_failure(output: &Output, expected: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in expected {
        assert!(text.contains(part), "stderr must contain {part:?}: {text}");
    }
}

/// Changed permissions of a device file. Dropping this value restores the previous permissions.
struct Rights {
    file: &'static str,
    before: Permissions,
}

impl Rights {
    fn new(file: &'static str, mode: u32) -> Self {
        let before = fs::metadata(file).unwrap().permissions();
        fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
        Self { file, before }
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        fs::set_permissions(self.file, self.before.clone()).unwrap();
    }
}

#[test]
fn loopback_error_lists_usable_addresses() {
    let lab = DeviceTest::start();
    for place in ["127.0.0.1:7471", "[::1]:7471", "localhost:7471"] {
        let connected = Endpoint::connect(place).map(drop);
        let bound = Listener::bind(place).map(drop);
        for error in [connected.unwrap_err(), bound.unwrap_err()] {
            let text = error.to_string();
            let Error::Loopback { address, local } = &error else {
                panic!("{place}: {error}");
            };
            assert!(address.ip().is_loopback(), "{address}");
            assert!(
                local.contains(&lab.addr) && local.contains(&lab.addr6),
                "{local:?}"
            );
            assert!(
                text.starts_with(&format!(
                    "{address} is a loopback address, which no RDMA device serves; "
                )) && text.contains(&lab.addr.to_string()),
                "{text}"
            );
            assert_eq!(
                io::Error::from(error.clone()).kind(),
                io::ErrorKind::AddrNotAvailable
            );
        }
    }
    // The error suggests these addresses, so a listener must be able to bind them.
    for ip in [lab.addr, lab.addr6] {
        Listener::bind((ip, 0)).unwrap();
    }
}

#[test]
fn port_is_in_use_for_any_address_of_other_listener() {
    let lab = DeviceTest::start();
    let all = |port| SocketAddr::new(IpAddr::from([0, 0, 0, 0]), port);
    let one = Listener::bind(lab.at(0)).unwrap();
    let taken = one.local_addr().port();
    for address in [lab.at(taken), all(taken)] {
        let error = Listener::bind(address).unwrap_err();
        let text = error.to_string().to_lowercase();
        assert!(
            text.contains("address") && text.contains("in use") && text.contains("another port"),
            "{address}: {text}"
        );
        assert_eq!(
            io::Error::from(error).kind(),
            io::ErrorKind::AddrInUse,
            "{address}"
        );
    }
    drop(one);

    let wide = Listener::bind(all(0)).unwrap();
    let taken = wide.local_addr().port();
    let error = Listener::bind(all(taken)).unwrap_err();
    assert!(error.to_string().contains("address in use"), "{error}");
    let error = Listener::bind(lab.at(taken)).unwrap_err();
    assert!(error.to_string().contains("address in use"), "{error}");
}

#[test]
fn denied_device_file_is_named_with_its_group() {
    let lab = DeviceTest::start();
    let nobody = |program: &str, arguments: &[&str]| {
        let mut command = example(program);
        command
            .args(arguments)
            .uid(UNPRIVILEGED_UID)
            .gid(UNPRIVILEGED_UID);
        command.output().unwrap()
    };
    let somewhere = lab.at(7471).to_string();
    let (here, all) = (format!("{}:7472", lab.addr), "0.0.0.0:7473".to_owned());
    const DEVICE: &str = "/dev/infiniband/uverbs0";
    const MANAGER: &str = "/dev/infiniband/rdma_cm";
    for (file, other) in [(DEVICE, MANAGER), (MANAGER, DEVICE)] {
        let _closed = Rights::new(file, 0o660);
        let _open = Rights::new(other, 0o666);
        for output in [
            nobody("cm_client", &[&somewhere, "--timeout", "1"]),
            nobody("cm_server", &[&here]),
            nobody("cm_server", &[&all]),
        ] {
            assert_failure(
                &output,
                &[
                    &format!("this process may not read and write {file} (mode 0660, group root)"),
                    "udev rule",
                ],
            );
        }
    }
}

#[test]
fn container_errors_name_the_start_options() {
    let lab = DeviceTest::start();
    let _rights = [
        Rights::new("/dev/infiniband/uverbs0", 0o666),
        Rights::new("/dev/infiniband/rdma_cm", 0o666),
    ];
    let listener = Listener::bind(lab.at(0)).unwrap();
    let address = listener.local_addr().to_string();
    let client = example("cm_client");
    let client = client.get_program();
    let run = |command: &mut Command| {
        command.env("container", "podman").stdin(Stdio::null());
        command.output().unwrap()
    };
    let output = run(Command::new("unshare")
        .args(["--mount", "sh", "-c"])
        .arg("mount -t tmpfs none /dev/infiniband && exec \"$0\" \"$1\"")
        .arg(client)
        .arg(&address));
    assert_failure(
        &output,
        &[
            "this machine offers no RDMA",
            "looks like a container",
            "--device=/dev/infiniband/rdma_cm",
        ],
    );
    let output = run(Command::new("sh")
        .args(["-c", "ulimit -l 64 && exec \"$0\" \"$1\""])
        .arg(client)
        .arg(&address)
        .uid(UNPRIVILEGED_UID)
        .gid(UNPRIVILEGED_UID));
    assert_failure(
        &output,
        &[
            "cannot register memory",
            "looks like a container",
            "--ulimit memlock=-1",
        ],
    );
}
