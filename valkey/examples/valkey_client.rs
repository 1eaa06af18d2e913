//! A blocking client for Valkey over RDMA, which writes RESP requests and checks the replies.
//!
//! ```text
//! valkey_client ADDRESS ping COUNT         send PING COUNT times
//! valkey_client ADDRESS values SIZE COUNT  SET and GET a value of SIZE bytes, COUNT times
//! valkey_client ADDRESS idle SECONDS       send nothing for SECONDS, then PING
//! valkey_client ADDRESS until-the-end      send PING until the server exits; print the error
//! ```

use std::{
    env,
    error::Error,
    io::{self, BufRead, BufReader, Read, Write},
    process::ExitCode,
    time::Duration,
};

use rdmsg_valkey::Stream;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A connection to a server, and a buffer for its replies.
struct Client {
    stream: Stream,
    replies: BufReader<Stream>,
}

impl Client {
    fn connect(address: &str) -> Result<Self> {
        let stream = Stream::connect(address)?;
        let replies = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, replies })
    }

    /// Sends a request. Each argument is preceded by its length.
    fn send(&mut self, arguments: &[&[u8]]) -> io::Result<()> {
        let mut head = format!("*{}\r\n", arguments.len());
        for argument in arguments {
            head += &format!("${}\r\n", argument.len());
            self.stream.write_all(head.as_bytes())?;
            self.stream.write_all(argument)?;
            head = "\r\n".to_owned();
        }
        self.stream.write_all(head.as_bytes())
    }

    /// Receives one line: a reply, or the header of a value.
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.replies.read_line(&mut line)? == 0 {
            return Err("the server has closed the connection".into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Receives a value.
    fn value(&mut self) -> Result<Vec<u8>> {
        let head = self.line()?;
        let len = head.strip_prefix('$').ok_or_else(|| head.clone())?;
        let mut value = vec![0; len.parse::<usize>()? + 2];
        self.replies.read_exact(&mut value)?;
        value.truncate(value.len() - 2);
        Ok(value)
    }

    fn ping(&mut self) -> Result<()> {
        self.send(&[b"PING"])?;
        expect(&self.line()?, "+PONG")
    }

    fn exchange_values(&mut self, size: usize, count: u32) -> Result<()> {
        let mut value: Vec<u8> = (0..size).map(|at| ((at * 31) >> 3) as u8).collect();
        for number in 0..count {
            // Each value contains its number, so a reply with the previous value is detected.
            if let Some(part) = value.first_chunk_mut() {
                *part = number.to_be_bytes();
            }
            self.send(&[b"SET", b"value", &value])?;
            expect(&self.line()?, "+OK")?;
            self.send(&[b"GET", b"value"])?;
            if self.value()? != value {
                return Err(format!("value {number} differs").into());
            }
        }
        Ok(())
    }
}

fn expect(reply: &str, expected: &str) -> Result<()> {
    match reply == expected {
        true => Ok(()),
        false => Err(format!("the reply is {reply:?} instead of {expected:?}").into()),
    }
}

fn run(arguments: &[&str]) -> Result<()> {
    let [address, command @ ..] = arguments else {
        return Err("usage: valkey_client ADDRESS COMMAND".into());
    };
    let mut client = Client::connect(address)?;
    println!("connected");
    match command {
        ["ping", count] => {
            for _ in 0..count.parse()? {
                client.ping()?;
            }
            println!("{count} replies");
        }
        ["values", size, count] => {
            client.exchange_values(size.parse()?, count.parse()?)?;
            println!("{count} values of {size} bytes");
        }
        ["idle", seconds] => {
            // During this time, the server sends Keepalive commands, but no bytes of the stream.
            let time = Duration::from_secs(seconds.parse()?);
            client.stream.set_read_timeout(Some(time))?;
            let silent = client.replies.fill_buf().map(<[u8]>::len);
            match silent {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                other => return Err(format!("an idle read must not return {other:?}").into()),
            }
            client.stream.set_read_timeout(None)?;
            client.ping()?;
            println!("alive after {seconds} s");
        }
        ["until-the-end"] => loop {
            client.ping()?;
        },
        _ => return Err("the commands are ping, values, idle and until-the-end".into()),
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("valkey_client: {error}");
            ExitCode::FAILURE
        }
    }
}
