//! Tests of the commands of `rdmsg`. Each command runs as a process, and uses TCP on one host.

use std::{
    fs,
    io::{self, Read, Write},
    path::PathBuf,
    process::{Command, Output, Stdio},
    thread,
};

use nix::sys::signal::Signal;
use rdmsg::{CloseReason, Config, Connector, Endpoint, Engine, Error, Listener, TransportChoice};
use serde_json::Value;
use toolbox::{Line, Process, Proxy, TIME_LIMIT, await_line, network::reserved_address};

fn rdmsg(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmsg"));
    command.args(line.split(' ')).env_remove("RUST_LOG");
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(output: &Output) -> Value {
    let value = serde_json::from_slice(&output.stdout);
    value.unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Creates a directory for this test.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("rdmsg-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Starts `rdmsg serve` on a free port. Returns the process and its address.
fn serve() -> (Process, String) {
    let line = format!(
        "{} serve {} --transport tcp",
        env!("CARGO_BIN_EXE_rdmsg"),
        reserved_address()
    );
    let argv: Vec<&str> = line.split(' ').collect();
    let mut process = Process::start(&argv).unwrap();
    loop {
        match process.line(TIME_LIMIT) {
            Some(Line::Out(line)) => {
                let words: Vec<&str> = line.split(' ').collect();
                assert_eq!((words[0], words[1]), ("listening", "on"), "{line}");
                return (process, words[2].to_owned());
            }
            Some(Line::Err(_)) => {}
            None => panic!("the server must print the address on which it listens"),
        }
    }
}

#[test]
fn ping_and_bench_go_over_tcp_on_any_machine() {
    let (mut server, address) = serve();
    let output = rdmsg(&format!(
        "ping {address} --transport tcp -c 30 -i 0 -s 1K --json"
    ));
    assert!(output.status.success(), "{output:?}");
    let value = json(&output);
    assert_eq!(value["came_back"], 30);
    assert_eq!(value["transport"], "TCP");
    let output = rdmsg(&format!("ping {address} --transport tcp -c 3 -i 0"));
    assert!(text(&output).contains("\n3 messages sent, 3 came back, no connection lost\n"));

    let output = rdmsg(&format!(
        "bench {address} --transport tcp --seconds 0.05 --sizes 64,4K --connections 1,2"
    ));
    assert!(output.status.success(), "{output:?}");
    let printed = text(&output);
    for part in [
        "latency: round trip",
        "bandwidth: one way",
        "rate: one way",
        "● TCP, 1 connection",
        "○ TCP, 2 connections",
        "size of a message",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(
        progress.contains("1 of 12: latency of 64 bytes"),
        "{progress}"
    );
    assert!(
        !printed.contains('\x1b'),
        "output to a pipe must contain no control sequences: {printed}"
    );
    server.signal(Signal::SIGINT).unwrap();
    let ended = server.end(TIME_LIMIT).unwrap().unwrap();
    assert_eq!(ended.status, Some(0), "{}", ended.output);
}

/// Returns all strings in a JSON value.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(values) => values.iter().flat_map(texts).collect(),
        Value::Object(members) => members.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn report_has_no_private_data() {
    let (_server, address) = serve();
    let folder = folder("report");
    let name = folder.join("results");
    let bench = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmsg"));
        let line = format!(
            "bench {address} --transport tcp --test latency --sizes 64 --seconds 0.02 --json"
        );
        command.args(line.split(' ')).arg("--report").arg(&name);
        command.env("HOME", "/srv/people/mallory");
        command.env("USER", "mallory");
        command.env(
            "MLX5_CQE_SIZE",
            "/srv/people/mallory/a mallory 10.8.0.99 fd08::77:1",
        );
        command.output().unwrap()
    };
    let output = bench();
    assert!(output.status.success(), "{output:?}");
    assert!(
        json(&output)["points"].is_array(),
        "stdout must contain only JSON, with the measured points"
    );
    let text = fs::read_to_string(folder.join("results.json")).unwrap();
    let markdown = fs::read_to_string(folder.join("results.md")).unwrap();

    let value: Value = serde_json::from_str(&text).unwrap();
    let system = nix::sys::utsname::uname().unwrap();
    assert_eq!(value["here"]["kernel"], system.release().to_str().unwrap());
    assert_eq!(value["peer"]["kernel"], value["here"]["kernel"]);
    assert_eq!(value["settings"]["config"]["connect_timeout"], "30s");
    let variable = &value["settings"]["variables"]["MLX5_CQE_SIZE"];
    assert_eq!(variable, "(home) (user) (address) (address)");
    assert_eq!(value["is_complete"], true);
    assert_eq!(value["points"][0]["transport"], "TCP");
    // In the finding about the route, the report shows `(address)` instead of the peer's address.
    let findings = value["findings"].to_string();
    assert!(findings.contains("(address)"), "{findings}");
    assert!(markdown.contains("latency: round trip"), "{markdown}");

    let addresses = nix::ifaddrs::getifaddrs().unwrap();
    let addresses = addresses.filter_map(|it| it.address).filter_map(|address| {
        let v4 = address.as_sockaddr_in().map(|it| it.ip().to_string());
        v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().to_string()))
    });
    let mut private: Vec<String> = addresses.collect();
    private.extend(["mallory", "/srv/people", "127.0.0.1"].map(String::from));
    for string in &private {
        assert!(!text.contains(string), "{string}: {text}");
        assert!(!markdown.contains(string), "{string}: {markdown}");
    }
    let user = nix::unistd::User::from_uid(nix::unistd::getuid());
    let names = [
        system.nodename().to_str().unwrap().to_owned(),
        user.unwrap().unwrap().name,
    ];
    for text in texts(&value) {
        for word in text.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '.') {
            assert!(!names.iter().any(|name| name == word), "{word}: {text}");
        }
    }

    let again = bench();
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(
        said.contains("results.json exists: choose another name"),
        "{said}"
    );
    assert_eq!(
        fs::read_to_string(folder.join("results.json")).unwrap(),
        text
    );
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn ping_goes_on_over_a_cut() {
    let (_server, address) = serve();
    let proxy = Proxy::start(address.parse().unwrap()).unwrap();
    let program = env!("CARGO_BIN_EXE_rdmsg");
    let peer = proxy.address;
    let line = format!("{program} ping {peer} --transport tcp --resume 600 --interval 0.2");
    let argv: Vec<&str> = line.split(' ').collect();
    let mut ping = Process::start(&argv).unwrap();
    for _ in 0..2 {
        // Wait for a reply: the line that ping prints for each message contains this text.
        await_line(&mut ping, ": ");
        proxy.cut();
        await_line(&mut ping, "suspended: the connection is lost");
        proxy.restore();
        await_line(&mut ping, "resumed after ");
    }
    await_line(&mut ping, ": ");
    ping.signal(Signal::SIGINT).unwrap();
    let ended = ping.end(TIME_LIMIT).unwrap().unwrap();
    assert_eq!(ended.status, Some(0), "{ended}");
    let summary = "no connection lost, resumed 2 times";
    assert!(ended.output.contains(summary), "{ended}");
}

/// Limits the address space of the process to its current size plus `more` bytes. Removes the limit
/// if `more` is `None`.
///
/// The stack of a new thread is larger than any other allocation of the process. With a small
/// `more`, the process therefore cannot start a thread, but can continue to run.
fn limit_address_space(process: &Process, more: Option<u64>) {
    let pid = process.id();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let size = size.and_then(|size| size.split_whitespace().next());
    let size: u64 = size.unwrap().parse().unwrap();
    let limit = more.map_or_else(
        || "unlimited".into(),
        |more| ((size << 10) + more).to_string(),
    );
    let set = Command::new("prlimit")
        .args([format!("--pid={pid}"), format!("--as={limit}:unlimited")])
        .status();
    assert!(set.unwrap().success());
}

#[test]
fn serve_survives_failed_thread_creation() {
    let (mut server, address) = serve();
    let config = Config::default().with(|c| c.transport = TransportChoice::Tcp);
    let connect = || Connector::new().config(&config).connect(&*address);
    let echo = |endpoint: &Endpoint, message: &[u8]| {
        endpoint.send(message).unwrap();
        assert_eq!(*endpoint.recv_timeout(TIME_LIMIT).unwrap(), *message);
    };
    let first = connect().unwrap();
    first.send(b"rdmsg-cli/1 echo").unwrap();
    first.recv_timeout(TIME_LIMIT).unwrap();
    echo(&first, b"before");
    limit_address_space(&server, Some(1 << 20));
    for _ in 0..3 {
        let refused = connect().unwrap().recv_timeout(TIME_LIMIT).unwrap_err();
        let expected = Error::Disconnected(CloseReason::PeerAborted(1));
        assert_eq!(refused.to_string(), expected.to_string());
        echo(&first, b"meanwhile");
    }
    limit_address_space(&server, None);
    let output = rdmsg(&format!("ping {address} --transport tcp -c 3 -i 0"));
    assert!(output.status.success(), "{output:?}");
    echo(&first, b"after");
    server.signal(Signal::SIGINT).unwrap();
    let ended = server.end(TIME_LIMIT).unwrap().unwrap();
    assert_eq!(ended.status, Some(0), "{}", ended.output);
    let said = "cannot start a thread: Resource temporarily unavailable";
    assert!(ended.output.contains(said), "{}", ended.output);
}

#[test]
fn echo_of_another_length_is_logged() {
    let mut config = Config::default();
    config.transport = TransportChoice::Tcp;
    let listener = Listener::builder()
        .config(&config)
        .engine(&Engine::new().unwrap())
        .bind("127.0.0.1:0")
        .unwrap();
    let address = listener.local_addr();
    let serving = thread::spawn(move || {
        let endpoint = listener.accept_timeout(TIME_LIMIT).unwrap();
        assert_eq!(
            *endpoint.recv_timeout(TIME_LIMIT).unwrap(),
            *b"rdmsg-cli/1 echo"
        );
        endpoint.send(b"+").unwrap();
        let message = endpoint.recv_timeout(TIME_LIMIT).unwrap();
        endpoint.send(&message[1..]).unwrap();
        // The receive fails once the client closes the connection.
        endpoint.recv_timeout(TIME_LIMIT).unwrap_err();
    });
    let output = rdmsg(&format!("ping {address} --transport tcp -c 1"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("the peer's reply differs from the message sent"),
        "{said}"
    );
    serving.join().unwrap();
}

/// Starts an echo service over TCP that is not `rdmsg serve`.
fn echo_service() -> String {
    let mut config = Config::default();
    config.transport = TransportChoice::Tcp;
    let listener = Listener::builder()
        .config(&config)
        .engine(&Engine::new().unwrap())
        .bind("127.0.0.1:0")
        .unwrap();
    let address = listener.local_addr();
    thread::spawn(move || {
        while let Ok(endpoint) = listener.accept() {
            while let Ok(message) = endpoint.recv() {
                let _ = endpoint.send(&*message);
            }
        }
    });
    address.to_string()
}

#[test]
fn another_program_at_the_address_is_reported() {
    let address = echo_service();
    let what = format!("a program other than `rdmsg serve` listens at {address}\n");
    for line in ["ping -c1", "bench --test latency"] {
        let line = line.replacen(' ', &format!(" {address} --transport tcp "), 1);
        let output = rdmsg(&line);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = text(&output) + &String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&what), "{said}");
        assert!(!said.contains("refused"), "{said}");
    }
    let value = json(&rdmsg(&format!("doctor --transport tcp --json {address}")));
    let findings = value["peer"]["findings"].as_array().unwrap();
    let found: Vec<_> = findings
        .iter()
        .map(|it| {
            (
                it["subject"].as_str().unwrap(),
                it["state"].as_str().unwrap(),
            )
        })
        .collect();
    let expected = [
        ("route", "ok"),
        ("peer", "error"),
        ("connection", "ok"),
        ("messages", "note"),
    ];
    assert_eq!(found, expected, "{value}");
    let what = format!("a program other than rdmsg serve listens at {address}");
    assert_eq!(findings[1]["what"], what);
    assert!(!value.to_string().contains("firewall"), "{value}");
}

#[test]
fn closed_pipe_ends_a_command_quietly() {
    for line in ["completions bash", "top --once --interval 0.1", "doctor"] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_rdmsg"));
        let command = command.args(line.split(' ')).env_remove("RUST_LOG");
        let ended = command
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let ended = ended.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(141), "{line}: {ended:?}");
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "", "{line}");
    }
}

#[test]
fn failed_connects_are_not_counted_as_messages() {
    let (mut server, address) = serve();
    let line = format!(
        "{} ping {address} --transport tcp -c 5 -i 3",
        env!("CARGO_BIN_EXE_rdmsg")
    );
    let argv: Vec<&str> = line.split(' ').collect();
    let mut ping = Process::start(&argv).unwrap();
    await_line(&mut ping, "    1: ");
    server.kill().unwrap();
    let ended = ping.end(TIME_LIMIT).unwrap().unwrap();
    assert_eq!(ended.status, Some(1), "{}", ended.output);
    let connects = ended.output.matches("cannot connect to ").count();
    let sent = 5 - connects;
    assert!(connects > 0 && sent > 0, "{}", ended.output);
    let summary = format!("\n{sent} messages sent, ");
    assert!(ended.output.contains(&summary), "{}", ended.output);
    assert!(
        !ended.output.contains("cannot connect: "),
        "{}",
        ended.output
    );
}

#[test]
fn commands_report_missing_server() {
    let (mut server, address) = serve();
    server.kill().unwrap();
    for line in [
        "ping --transport tcp -c1",
        "bench --transport tcp --test rate",
    ] {
        let output = rdmsg(&line.replacen(' ', &format!(" {address} "), 1));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = text(&output) + &String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("refused: no program listens"), "{said}");
    }
}

#[test]
fn invalid_arguments_are_refused_before_any_action() {
    for line in ["ping not-a-host.invalid -c1", "man /no/such/folder"] {
        assert_eq!(rdmsg(line).status.code(), Some(1), "{line}");
    }
    for line in [
        "ping",
        "ping 127.0.0.1 -s 2G",
        "ping 127.0.0.1 -i -1",
        "bench 127.0.0.1 --connections 0",
        "serve --max-connections 0",
        "top --interval 0",
        "doctor --timeout never",
    ] {
        assert_eq!(rdmsg(line).status.code(), Some(2), "{line}");
    }
}

#[test]
fn the_doctor_examines_any_machine() {
    let output = rdmsg("doctor --json");
    let value = json(&output);
    let worst = value["worst"].as_str().unwrap();
    let expected = match worst {
        "ok" | "note" => 0,
        "warning" => 3,
        "error" => 4,
        _ => panic!("{value}"),
    };
    assert_eq!(output.status.code(), Some(expected), "{value}");
    assert!(!value["findings"].as_array().unwrap().is_empty());
}

#[test]
fn doctor_of_tcp_needs_no_device() {
    let (_server, address) = serve();
    let output = rdmsg(&format!("doctor --transport tcp --json {address}"));
    let value = json(&output);
    assert_eq!(output.status.code(), Some(0), "{value}");
    let subjects = |findings: &Value| -> Vec<String> {
        let findings = findings.as_array().unwrap().iter();
        findings
            .map(|it| it["subject"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(subjects(&value["findings"]), ["files", "tcp"]);
    let steps = ["route", "peer", "connection", "messages"];
    assert_eq!(subjects(&value["peer"]["findings"]), steps);
    let peer = value["peer"]["findings"][1]["what"].as_str().unwrap();
    assert!(peer.ends_with(" in 1 check"), "{peer}");
}

#[test]
fn completions_and_manual_cover_each_command() {
    for shell in ["bash", "zsh", "fish"] {
        let printed = text(&rdmsg(&format!("completions {shell}")));
        for command in ["doctor", "serve", "ping", "bench", "top", "bridge"] {
            assert!(printed.contains(command), "{shell}: {command}");
        }
    }
    let folder = folder("man");
    assert!(rdmsg(&format!("man {}", folder.display())).status.success());
    for command in ["doctor", "serve", "ping", "bench", "top", "bridge"] {
        let page = fs::read_to_string(folder.join(format!("rdmsg-{command}.1"))).unwrap();
        assert!(page.contains("Examples:"), "{command}: {page}");
    }
    fs::remove_dir_all(folder).unwrap();
}

/// Reads from the output of a program until the bytes that this call has read end with `text`.
fn await_text(output: &mut impl Read, text: &str) {
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(text.as_bytes()) {
        output.read_exact(&mut byte).unwrap_or_else(|error| {
            panic!(
                "{text:?} must follow {}: {error}",
                String::from_utf8_lossy(&read)
            );
        });
        read.push(byte[0]);
    }
}

/// Runs `top` in a terminal, which script(1) of util-linux provides.
#[test]
fn top_pauses_and_quits_by_keys() {
    let line = format!("{} top --interval 0.1", env!("CARGO_BIN_EXE_rdmsg"));
    let mut script = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = script.stdin.take().unwrap();
    let mut screen = script.stdout.take().unwrap();
    await_text(&mut screen, "q quits, any other key pauses");
    keys.write_all(b" ").unwrap();
    await_text(&mut screen, "paused: q quits, any other key continues");
    keys.write_all(b"\x1b[A").unwrap();
    await_text(&mut screen, "q quits, any other key pauses");
    keys.write_all(b"q").unwrap();
    let mut rest = Vec::new();
    screen.read_to_end(&mut rest).unwrap();
    assert!(script.wait().unwrap().success());
}
