//! Tests of configurations from environment variables. Each test sets the variables for a separate
//! process.

use std::process::Command;

use rdmsg::Config;

/// Runs `variables_are_read` in a process with the given environment variables. Returns the
/// process's output.
fn read_with(variables: &[(&str, &str)]) -> String {
    read_in("variables_are_read", variables)
}

fn read_in(test: &str, variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
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
        config.receive_window = Some(64);
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
            "receive_window is 0 in RDMSG_CONFIG_RECEIVE_WINDOW, allowed is 1 to 8192",
        ),
        (
            "RDMSG_CONFIG_POLLING",
            "adaptive:2s",
            "polling.spin is 2s in RDMSG_CONFIG_POLLING, allowed is 0ns to 1s",
        ),
        (
            "RDMSG_CONFIG_RDMA_RETRY_COUNT",
            "8",
            "rdma.retry_count is 8 in RDMSG_CONFIG_RDMA_RETRY_COUNT, allowed is 0 to 7",
        ),
    ] {
        let output = read_with(&[(name, value)]);
        let expected = format!("refused: invalid configuration: {refused}");
        assert!(output.contains(&expected), "{output}");
    }
}

#[test]
#[ignore = "run by other tests, with variables set"]
fn variables_are_applied() {
    let mut config: Config = "receive_window=5 send_depth=6".parse().unwrap();
    match config.apply_env("RDMSG_CONFIG_") {
        Ok(()) => println!("applied {config:?};"),
        Err(error) => println!("refused: {error}; {config:?};"),
    }
    config.send_depth = Some(0);
    let refused = config.apply_env("RDMSG_CONFIG_").unwrap_err();
    println!("then {refused};");
}

/// The environment overrides some values of a configuration that comes from another source, such as
/// a file.
#[test]
fn variables_change_a_configuration() {
    let output = read_in(
        "variables_are_applied",
        &[("RDMSG_CONFIG_RECEIVE_WINDOW", "64")],
    );
    let expected: Config = "receive_window=64 send_depth=6".parse().unwrap();
    assert!(
        output.contains(&format!("applied {expected:?};")),
        "{output}"
    );
    let refused = "then invalid configuration: send_depth is 0, allowed is 1 to 8192;";
    assert!(output.contains(refused), "{output}");
}

#[test]
fn refused_variable_leaves_configuration_unchanged() {
    let output = read_in(
        "variables_are_applied",
        &[
            ("RDMSG_CONFIG_SEND_DEPTH", "7"),
            ("RDMSG_CONFIG_RECEIVE_WINDOW", "9000"),
        ],
    );
    let refused = "refused: invalid configuration: receive_window is 9000 in \
                   RDMSG_CONFIG_RECEIVE_WINDOW, allowed is 1 to 8192;";
    let before: Config = "receive_window=5 send_depth=6".parse().unwrap();
    assert!(
        output.contains(&format!("{refused} {before:?};")),
        "{output}"
    );
}
