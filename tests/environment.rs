//! Configurations from environment variables, each read by a process of its own.

use std::process::Command;

use rdmsg::Config;

/// Runs `variables_are_read` with these variables, and returns its output.
fn read_with(variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "variables_are_read", "--ignored", "--nocapture"])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "run by other tests, with variables set"]
fn variables_are_read() {
    match Config::from_env("RDMSG_CONFIG_") {
        Ok(config) => println!("read {config:?};"),
        Err(error) => println!("refused: {error};"),
    }
}

#[test]
fn variables_set_their_fields_alone() {
    let output = read_with(&[
        ("RDMSG_CONFIG_RECEIVE_WINDOW", "64"),
        ("RDMSG_CONFIG_KEEPALIVE_INTERVAL", "none"),
        ("RDMSG_CONFIG_RDMA_RETRY_COUNT", "3"),
        ("RDMSG_CONFI", "another name"),
    ]);
    let expected = Config::default().with(|config| {
        config.receive_window = 64;
        config.keepalive_interval = None;
        config.rdma.retry_count = 3;
    });
    assert!(output.contains(&format!("read {expected:?};")), "{output}");
}

#[test]
fn wrong_variables_are_refused_by_name() {
    for (name, value, refused) in [
        (
            "RDMSG_CONFIG_RECIEVE_WINDOW",
            "64",
            "the name of a field is RDMSG_CONFIG_RECIEVE_WINDOW, allowed is receive_window, ",
        ),
        (
            "RDMSG_CONFIG_READ_TIMEOUT",
            "5",
            "read_timeout is \"5\" in RDMSG_CONFIG_READ_TIMEOUT, allowed is a duration, ",
        ),
        (
            "RDMSG_CONFIG_RECEIVE_WINDOW",
            "0",
            "receive_window is 0, allowed is 1 to 8192",
        ),
    ] {
        let output = read_with(&[(name, value)]);
        let expected = format!("refused: invalid configuration: {refused}");
        assert!(output.contains(&expected), "{output}");
    }
}
