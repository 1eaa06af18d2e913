use std::{env, fmt, path::PathBuf, thread};

use rdmsg::{CloseReason, Config, Connector, Endpoint, Error, Listener, ToAddresses};

use crate::{Lab, TIME_LIMIT};

/// Returns the default configuration with longer timeouts. They are long enough for a busy machine,
/// on which even a living peer may need more than the default time to connect or to answer.
pub fn patient() -> Config {
    Config::default().with(|config| {
        config.connect_timeout = TIME_LIMIT;
        config.keepalive_timeout = TIME_LIMIT;
        config.close_timeout = TIME_LIMIT;
    })
}

/// Connects with the default configuration, except that the connect may take up to [`TIME_LIMIT`].
///
/// # Errors
///
/// The errors of [`Connector::connect`].
pub fn connect(address: impl ToAddresses) -> Result<Endpoint, Error> {
    let config = Config::default().with(|config| config.connect_timeout = TIME_LIMIT);
    Connector::new().config(&config).connect(address)
}

/// Connects this host to itself. Both endpoints use the shared engine. Returns the endpoint that
/// connects, followed by the endpoint that accepts. If `config` has the default keepalive timeout,
/// the connection has a longer one.
///
/// # Panics
///
/// If the connection cannot be established.
pub fn pair_with(config: &Config) -> (Endpoint, Endpoint) {
    let mut config = config.clone();
    config.connect_timeout = config.connect_timeout.max(TIME_LIMIT);
    // On a busy machine, even a living peer may need more than the default time to answer.
    if config.keepalive_timeout == Config::default().keepalive_timeout {
        config.keepalive_timeout = TIME_LIMIT;
    }
    let listener = Listener::builder()
        .config(&config)
        .bind(Lab::get().at(0))
        .expect("the listener must bind");
    let address = listener.local_addr();
    let connector = Connector::new().config(&config);
    let client =
        thread::spawn(move || connector.connect(address).expect("the client must connect"));
    let server = listener
        .accept_timeout(TIME_LIMIT)
        .expect("the listener must accept the client");
    (client.join().expect("the client must not panic"), server)
}

/// Like [`pair_with`], with the default configuration.
pub fn pair() -> (Endpoint, Endpoint) {
    pair_with(&Config::default())
}

/// Returns the path of an example program. The program must be in the parent folder of the test
/// program's folder.
///
/// # Panics
///
/// If the program does not exist there.
pub fn example(name: &str) -> PathBuf {
    let here = env::current_exe().expect("this program must have a path");
    let folder = here
        .ancestors()
        .nth(2)
        .expect("the test program's folder must have a parent");
    let program = folder.join(name);
    assert!(
        program.exists(),
        "{} does not exist: build it with cargo build -p cm-examples -p rdmsg-cli --bins",
        program.display()
    );
    program
}

/// Returns the reason why a connection has ended. `result` is the result of a call on the
/// connection's endpoint.
///
/// # Panics
///
/// If the call succeeded, or if its error does not contain the reason.
pub fn reason(result: Result<impl fmt::Debug, Error>) -> CloseReason {
    match result.expect_err("the call must fail") {
        Error::Disconnected(reason)
        | Error::Connect { reason, .. }
        | Error::Undelivered(reason) => reason,
        other => panic!("the error must contain a close reason: {other:?}"),
    }
}
