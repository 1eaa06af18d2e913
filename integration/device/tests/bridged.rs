//! Tests that unmodified programs of the Linux distribution communicate through a pair of bridges,
//! which are connected over RDMA.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use toolbox::{BridgePair, DeviceTest, Process, TIME_LIMIT, example, pattern, retry};

/// Starts two bridges, which connect to each other over RDMA. Clients connect to the near bridge,
/// and the far bridge connects to the service.
fn pair(lab: &DeviceTest, service: SocketAddr) -> BridgePair {
    let options = ["--connect-timeout", "60"];
    BridgePair::start(&example("rdmsg"), &between(lab), service, &options).unwrap()
}

fn between(lab: &DeviceTest) -> String {
    format!("rdma://{}", lab.at(0))
}

/// Returns an address on which no program listens.
fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Creates a temporary folder for one test, and returns the folder's path.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("bridged-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs a program, which must succeed. Returns its stdout.
fn run(argv: &[&str]) -> Vec<u8> {
    let output = Command::new(argv[0])
        .args(&argv[1..])
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| {
            panic!(
                "{}: {error}: integration/lab setup installs this program",
                argv[0]
            )
        });
    assert!(output.status.success(), "{argv:?}: {output:?}");
    output.stdout
}

#[test]
fn redis() {
    let lab = DeviceTest::start();
    let service = free();
    let port = service.port().to_string();
    let options = "--bind 127.0.0.1 --save '' --appendonly no --dir /tmp --port";
    let mut argv = vec!["redis-server"];
    argv.extend(options.split(' ').map(|word| word.trim_matches('\'')));
    argv.push(&port);
    let mut redis = Process::start(&argv).unwrap();
    assert!(redis.wait_for_text("Ready to accept connections", TIME_LIMIT));

    let mut pair = pair(&lab, service);
    let port = pair.near.address.port().to_string();
    let text = |argv: &[&str]| String::from_utf8(run(argv)).unwrap();
    let cli = |words: &[&str]| text(&[&["redis-cli", "-p", &port], words].concat());
    assert_eq!(cli(&["ping"]), "PONG\n");
    let make = "return redis.call('set', 'long', string.rep('0123456789', 100000))";
    assert_eq!(cli(&["eval", make, "0"]), "OK\n");
    assert_eq!(cli(&["get", "long"]), "0123456789".repeat(100_000) + "\n");
    let tests = "-t set,get,lpush,lrange_100 -n 100 -c 20 -P 4 -d 500 --csv";
    let mut argv = vec!["redis-benchmark", "-p", &port];
    argv.extend(tests.split(' '));
    let table = text(&argv);
    for test in ["SET", "GET", "LPUSH", "LRANGE_100 (first 100 elements)"] {
        assert!(table.contains(&format!("\"{test}\",")), "{table}");
    }
    assert_eq!(
        cli(&["llen", "mylist"]),
        "200\n",
        "LPUSH and LRANGE_100 must push 100 values each"
    );
    pair.near.reports("0 open").unwrap();
    pair.near.reports(" 0 failed").unwrap();
    pair.far.reports(" 0 failed").unwrap();
}

#[test]
fn nginx() {
    let lab = DeviceTest::start();
    let folder = folder("nginx");
    let service = free();
    let file: Vec<u8> = pattern(1, 500_000);
    fs::write(folder.join("file"), &file).unwrap();
    let conf = folder.join("nginx.conf");
    let at = folder.display();
    let text = format!(
        "daemon off; user root; pid {at}/pid; error_log stderr; worker_processes 1;
         events {{ worker_connections 256; }}
         http {{ access_log off; client_body_temp_path {at}/1; proxy_temp_path {at}/2;
           fastcgi_temp_path {at}/3; uwsgi_temp_path {at}/4; scgi_temp_path {at}/5;
           server {{ listen {service}; root {at}; }} }}"
    );
    fs::write(&conf, text).unwrap();
    let conf = conf.display().to_string();
    let _nginx = Process::start(&["nginx", "-c", &conf]).unwrap();
    while TcpStream::connect(service).is_err() {
        thread::yield_now();
    }

    let mut pair = pair(&lab, service);
    let url = format!("http://{}/file", pair.near.address);
    let mut argv: Vec<String> = ["curl", "--silent", "--fail", "--parallel", "--parallel-max"]
        .map(str::to_owned)
        .into();
    argv.push("8".into());
    let mut got = Vec::new();
    for number in 0..8 {
        let path = folder.join(format!("got-{number}"));
        argv.extend(["-o".into(), path.display().to_string(), url.clone()]);
        got.push(path);
    }
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    run(&argv);
    for path in got {
        assert!(fs::read(&path).unwrap() == file, "{}", path.display());
    }
    // This client disconnects during a transfer.
    let mut client = TcpStream::connect(pair.near.address).unwrap();
    client.write_all(b"GET /file HTTP/1.0\r\n\r\n").unwrap();
    client.read_exact(&mut [0; 1000]).unwrap();
    drop(client);
    let part = run(&["curl", "--silent", "--fail", "--range", "0-99", &url]);
    assert_eq!(part, &file[..100]);
    pair.near.reports("0 open").unwrap();
    pair.far.reports("0 open").unwrap();
    fs::remove_dir_all(folder).unwrap();
}

/// Writes a script that runs `rdmsg` with at most `kib` KiB of locked memory, and without
/// CAP_IPC_LOCK, which would lift this limit. Returns the script's path.
fn with_memlock(folder: &Path, kib: u32) -> PathBuf {
    let path = folder.join("rdmsg");
    let program = example("rdmsg");
    let drop = "exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock";
    let program = program.display();
    let script = format!("#!/bin/sh\nulimit -l {kib}\n{drop} {program} \"$@\"\n");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Connects to the bridge, sends one byte, and receives one byte. Returns `None` if the bridge
/// resets the connection at any of these steps.
fn echoed(address: SocketAddr) -> Option<TcpStream> {
    let echoed = || {
        let mut client = TcpStream::connect(address)?;
        client.set_read_timeout(Some(TIME_LIMIT))?;
        client.write_all(&[7])?;
        client.read_exact(&mut [0])?;
        Ok(client)
    };
    match echoed() {
        Ok(client) => Some(client),
        Err::<_, std::io::Error>(error) => {
            let reset = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
            assert!(reset.contains(&error.kind()), "{error}");
            None
        }
    }
}

#[test]
fn connections_that_do_not_fit_are_refused_by_name() {
    let lab = DeviceTest::start();
    let folder = folder("memlock");
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = service.local_addr().unwrap();
    thread::spawn(move || {
        for client in service.incoming() {
            let mut client = client.unwrap();
            thread::spawn(move || {
                let mut byte = [0];
                while client.read_exact(&mut byte).is_ok() && client.write_all(&byte).is_ok() {}
            });
        }
    });
    let limited = with_memlock(&folder, 4096);
    let mut pair = BridgePair::start(&limited, &between(&lab), address, &[]).unwrap();
    let mut clients: Vec<_> = (0..30).filter_map(|_| echoed(pair.near.address)).collect();
    assert!(
        (1..30).contains(&clients.len()),
        "{} of 30 connections fit",
        clients.len()
    );
    assert!(
        pair.near.says("ulimit -l"),
        "the near bridge must log which limit to raise"
    );
    // The open connections must still transfer data. When one of them ends, a new connection must
    // succeed.
    for client in &mut clients {
        client.write_all(&[8]).unwrap();
        client.read_exact(&mut [0]).unwrap();
    }
    let open = clients.len();
    clients.pop();
    let left = format!("{} open", open - 1);
    pair.near.reports(&left).unwrap();
    pair.far.reports(&left).unwrap();
    // The engines free the memory of a closed connection shortly after the bridges report its end.
    let another = || echoed(pair.near.address).ok_or("the memory must be free again");
    clients.push(retry(TIME_LIMIT, Duration::from_millis(20), another).unwrap());
    fs::remove_dir_all(folder).unwrap();
}
