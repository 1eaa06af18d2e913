use std::{
    fmt,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use rdmsg::{CloseReason, Endpoint, Error};

use crate::{
    doctor::Examination,
    service::{Answer, Request},
};

/// The time limit for receiving a request and for sending the reply. After an examination, the
/// server also waits at most this time for the client to close the connection. Echoed messages have
/// no time limit.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The abort code for a client whose first message is not a request, or does not arrive in time.
const UNKNOWN: u32 = 2;

/// The reason why a connection ended, and the service that the client requested.
#[derive(Debug)]
pub(super) struct Ended {
    request: Option<Request>,
    error: Error,
}

/// Serves one connection until it ends.
pub(super) fn serve(endpoint: &Endpoint, reports: &Reports) -> Ended {
    let mut request = None;
    let Err(error) = serve_requests(endpoint, reports, &mut request);
    Ended { request, error }
}

enum Never {}

fn serve_requests(
    endpoint: &Endpoint,
    reports: &Reports,
    request: &mut Option<Request>,
) -> Result<Never, Error> {
    let first = endpoint
        .recv_timeout(TIME_LIMIT)
        .inspect_err(|_| endpoint.abort(UNKNOWN))?;
    *request = Request::parse(&first);
    drop(first);
    match request {
        Some(Request::Echo) => {
            grant(endpoint, b"")?;
            loop {
                let message = endpoint.recv()?;
                endpoint.send(&message)?;
            }
        }
        Some(Request::Sink) => {
            grant(endpoint, b"")?;
            loop {
                endpoint.recv()?;
            }
        }
        Some(Request::Examine) => {
            let report = reports.for_peer(endpoint.peer_addr().ip());
            grant(endpoint, report.as_bytes())?;
            loop {
                endpoint.recv_timeout(TIME_LIMIT)?;
            }
        }
        None => {
            let said = [&[Answer::Refused.byte()][..], b"this is `rdmsg serve`"].concat();
            endpoint.send_timeout(&said, TIME_LIMIT)?;
            // Wait until the client has received the text, because an abort drops messages in
            // flight.
            endpoint.flush_timeout(TIME_LIMIT)?;
            endpoint.abort(UNKNOWN);
            Err(Error::Disconnected(CloseReason::LocallyAborted))
        }
    }
}

fn grant(endpoint: &Endpoint, said: &[u8]) -> Result<(), Error> {
    let answer = [&[Answer::Granted.byte()], said].concat();
    endpoint.send_timeout(&answer, TIME_LIMIT)
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.request {
            Some(Request::Echo) => f.write_str("echo")?,
            Some(Request::Sink) => f.write_str("sink")?,
            Some(Request::Examine) => f.write_str("examination")?,
            None => f.write_str("not an rdmsg request")?,
        }
        match &self.error {
            Error::Disconnected(reason) => write!(f, ", {reason}"),
            error => write!(f, ", {error}"),
        }
    }
}

/// The time for which an examination is cached. An examination starts other programs, so clients
/// must not be able to trigger an examination with each request.
const AGE: Duration = Duration::from_secs(2);

/// The last examination of this host, and its time. The server sends examinations to `rdmsg doctor`
/// on other hosts.
#[derive(Debug, Default)]
pub(super) struct Reports(Mutex<Option<(Instant, Examination)>>);

impl Reports {
    /// Returns an examination of this host as JSON. The links and the route to the peer are
    /// current; all other findings are at most `AGE` old.
    pub(super) fn for_peer(&self, peer: IpAddr) -> String {
        let mut examination = self.last();
        examination.look_towards(peer);
        examination.to_json()
    }

    fn last(&self) -> Examination {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, examination)) = &*last
            && at.elapsed() < AGE
        {
            return examination.clone();
        }
        let examination = Examination::of_this_host(None, None);
        *last = Some((Instant::now(), examination.clone()));
        examination
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rdmsg::{Config, Connector, Engine, Listener, TransportChoice};

    use super::*;

    #[test]
    fn a_connection_that_says_nothing_is_ended() {
        let config = Config::default().with(|c| c.transport = TransportChoice::Tcp);
        let engine = Engine::new().unwrap();
        let listener = Listener::builder()
            .config(&config)
            .engine(&engine)
            .bind("127.0.0.1:0")
            .unwrap();
        let addr = listener.local_addr();
        let silent = thread::spawn(move || Connector::new().config(&config).connect(addr).unwrap());
        let endpoint = listener.accept().unwrap();
        let silent = silent.join().unwrap();
        let ended = serve(&endpoint, &Reports::default());
        assert!(matches!(ended.error, Error::TimedOut), "{ended}");
        let end = silent.recv().unwrap_err();
        let was_aborted = matches!(end, Error::Disconnected(CloseReason::PeerAborted(UNKNOWN)));
        assert!(was_aborted, "{end}");
    }
}
