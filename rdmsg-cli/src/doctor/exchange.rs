use std::{
    net::{IpAddr, Ipv4Addr},
    thread,
    time::Duration,
};

use rdmsg::{Config, Connector, Engine, Error, Listener, TransportChoice, status::OsError};
use rdmsg_os::failed;

use super::{devices::Device, finding::Finding};

const SUBJECT: &str = "exchange";

/// The content of the exchanged message.
const MESSAGE: &[u8] = b"rdmsg doctor";

/// Sends a message over each device from this host to itself, and checks that the message returns.
pub(super) fn over_each(devices: &[Device], timeout: Duration) -> Vec<Finding> {
    let with_address = devices.iter().filter_map(|device| {
        let address = device.addresses().into_iter().next()?;
        Some((device, address))
    });
    with_address
        .map(|(device, address)| {
            let name = &device.name;
            match exchange(TransportChoice::Rdma, address, timeout) {
                Ok(()) => {
                    let what = format!("a message was sent over {name} to {address} and came back");
                    Finding::ok(SUBJECT, what)
                }
                Err(error) => {
                    let what = format!("no message came back over {name} from {address}: {error}");
                    Finding::error(SUBJECT, what)
                        .because("a host that cannot reach itself cannot reach another host")
                        .hint("the findings above or `dmesg` may show the cause")
                }
            }
        })
        .collect()
}

/// Sends a message over TCP from this host to itself, and checks that the message returns.
pub(super) fn over_tcp(timeout: Duration) -> Finding {
    const SUBJECT: &str = "tcp";
    let address = Ipv4Addr::LOCALHOST;
    match exchange(TransportChoice::Tcp, address.into(), timeout) {
        Ok(()) => {
            let what = format!("a message was sent over TCP to {address} and came back");
            Finding::ok(SUBJECT, what)
        }
        Err(error) => {
            let what = format!("no message came back over TCP from {address}: {error}");
            Finding::error(SUBJECT, what)
                .because("a host that cannot reach itself cannot reach another host")
                .hint("`ip address show lo` shows whether the loopback interface is up")
        }
    }
}

/// Checks that the peer's reply is the message that this side has sent.
pub(super) fn check_reply(reply: &[u8], sent: &[u8]) -> Result<(), Error> {
    if reply == sent {
        return Ok(());
    }
    let call = "comparison of the reply with the message sent";
    Err(Error::Os(OsError::new(call, nix::Error::EBADMSG as i32)))
}

fn exchange(transport: TransportChoice, address: IpAddr, timeout: Duration) -> Result<(), Error> {
    let mut config = Config::default();
    config.transport = transport;
    config.connect_timeout = timeout;
    let engine = Engine::new()?;
    let listener = Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind((address, 0))?;
    let at = listener.local_addr();
    let echo = thread::Builder::new().name("rdmsg-echo".into());
    let echo = echo.spawn(move || {
        let endpoint = listener.accept_timeout(timeout)?;
        let message = endpoint.recv_timeout(timeout)?;
        endpoint.send_timeout(&message, timeout)?;
        drop(message);
        // Wait until the connecting side has closed the connection.
        match endpoint.recv_timeout(timeout) {
            Err(Error::Disconnected(_)) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Ok(()),
        }
    });
    let echo = echo.map_err(failed("pthread_create"))?;
    let connector = Connector::new().config(&config).engine(&engine);
    let asked = connector.connect(at).and_then(|endpoint| {
        endpoint.send_timeout(MESSAGE, timeout)?;
        let answer = endpoint.recv_timeout(timeout)?;
        check_reply(&answer, MESSAGE)?;
        drop(answer);
        endpoint.close()
    });
    if asked.is_err() {
        // The exchange failed. Shut down the engine, because the echo thread may still wait for a
        // connection.
        engine.shutdown();
    }
    // Prefer the error of the accepting side: if a limit is too low, only this error names the
    // limit.
    match (asked, echo.join()) {
        (Err(error), Ok(Ok(()) | Err(Error::EngineShutDown | Error::ListenerEnded { .. }))) => {
            Err(error)
        }
        (Err(_), Ok(Err(error))) => Err(error),
        (asked, _) => asked,
    }
}
