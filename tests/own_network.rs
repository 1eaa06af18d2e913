//! Tests of the TCP transport in a network namespace that has only a loopback interface. The test
//! suite runs this program in the lab, because some containers do not permit new network
//! namespaces.

use std::{
    fs,
    net::{SocketAddr, SocketAddrV6, TcpListener, TcpStream},
    process::Command,
    thread,
};

use common::{
    TIME_LIMIT,
    apart::run_in_process_of,
    same_errors::{assert_same, assert_same_connect},
};
use rdmsg::{Stream, StreamListener};

/// Runs `body` over TCP in a separate process with its own network namespace.
fn run_in_own_network(name: &str, body: impl FnOnce()) {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command
        .args(["--map-root-user", "--net", "sh", "-c"])
        .arg("ip link set lo up && exec \"$0\" \"$@\"")
        .arg(program)
        .env("RDMSG_TRANSPORT", "tcp");
    run_in_process_of(command, name, body);
}

#[test]
fn missing_ports_are_reported() {
    run_in_own_network("missing_ports_are_reported", || {
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40001").unwrap();
        let listener = TcpListener::bind("127.0.0.1:7471").unwrap();
        let address = listener.local_addr().unwrap();
        let _streams = [(); 2].map(|()| TcpStream::connect(address).unwrap());
        assert_same_connect(address);
    });
}

#[test]
fn missing_route_is_reported() {
    run_in_own_network("missing_route_is_reported", || {
        assert_same_connect("10.1.2.3:7471".parse().unwrap());
        assert_same_connect("[2001:db8::1]:7471".parse().unwrap());
        assert_same_connect("[fe80::1]:7471".parse().unwrap());
        for error in [
            Stream::connect("tcp://[fe80::1]:7471").unwrap_err(),
            StreamListener::bind("tcp://[fe80::1]:7471").unwrap_err(),
        ] {
            let advice = "A link-local address needs its network interface: [fe80::1%eth0]:7471";
            assert!(error.to_string().ends_with(advice), "{error}");
        }
    });
}

#[test]
fn address_of_another_host_cannot_be_bound() {
    run_in_own_network("address_of_another_host_cannot_be_bound", || {
        for address in ["10.1.2.3:7471", "[2001:db8::1]:7471"] {
            let address: SocketAddr = address.parse().unwrap();
            let std = TcpListener::bind(address).unwrap_err();
            let ours = StreamListener::bind(format!("tcp://{address}")).unwrap_err();
            assert_same(&ours, &std, address);
        }
    });
}

/// Adds a link-local address to the loopback interface. Returns the address, with the index of the
/// interface as its scope.
fn link_local() -> SocketAddrV6 {
    let added = Command::new("ip")
        .args(["-6", "address", "add", "fe80::7/64", "dev", "lo", "nodad"])
        .status()
        .unwrap();
    assert!(added.success());
    SocketAddrV6::new("fe80::7".parse().unwrap(), 0, 0, 1)
}

#[test]
fn link_local_address_includes_its_interface() {
    run_in_own_network("link_local_address_includes_its_interface", || {
        let local = link_local();
        for bound in [
            "tcp://[fe80::7%lo]:0",
            "tcp://[fe80::7%1]:0",
            "tcp://[::]:0",
        ] {
            let listener = StreamListener::bind(bound).unwrap();
            let addr = listener.local_addr().unwrap();
            let port = addr.port();
            let to = SocketAddr::from(SocketAddrV6::new(*local.ip(), port, 0, local.scope_id()));
            if !addr.ip().is_unspecified() {
                assert_eq!(addr, to, "{bound}");
            }
            for text in [
                format!("tcp://[fe80::7%lo]:{port}"),
                format!("[fe80::7%1]:{port}"),
            ] {
                let client =
                    thread::spawn(move || Stream::connect_timeout(text, TIME_LIMIT).unwrap());
                let (server, from) = listener.accept().unwrap();
                let client = client.join().unwrap();
                assert_eq!(client.peer_addr().unwrap(), to);
                assert_eq!(
                    from,
                    client.local_addr().unwrap(),
                    "the address must include its interface"
                );
                assert_eq!(server.peer_addr().unwrap(), from);
                assert!(
                    matches!(from, SocketAddr::V6(from) if from.scope_id() == 1),
                    "{from}"
                );
            }
        }
    });
}
