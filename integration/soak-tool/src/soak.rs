use std::{
    fmt,
    net::SocketAddr,
    str::FromStr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use rdmsg::{
    Engine,
    crossbeam_channel::{Receiver, bounded, unbounded},
};
use toolbox::{Health, Lab, Side};

use crate::{
    board::{Board, PATIENCE},
    book::{Book, NoBook},
    client,
    control::Control,
    ledger::Ledger,
    run::Run,
    server,
    totals::Totals,
};

/// How many connections each endpoint has before what exists is counted for the first time.
const WARM_UP_ROUNDS: u64 = 3;

/// How often the program says how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

/// Said by the client when its last connection has ended, and answered by the server when its own
/// have.
const OVER: &str = "over";

/// The last word of a side on which everything was found right.
const BYE: &str = "bye";

/// What both programs have to agree on: the client tells the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    /// How many connections there are at a time.
    pub(crate) endpoints: u64,
    pub(crate) duration: Duration,
}

/// One side's program, from the control connection to the last word.
#[derive(Debug)]
pub(crate) struct Soak {
    side: Side,
    lab: Lab,
    settings: Settings,
    board: Arc<Board>,
    totals: Arc<Totals>,
    ledger: Arc<Ledger>,
    control: Arc<Control>,
    /// What the other program says, apart from books.
    lines: Receiver<String>,
}

impl Soak {
    /// Runs one side; the server learns from the client what it is to be.
    pub(crate) fn run(side: Side, settings: Option<Settings>) -> Result<()> {
        let lab = Lab::get();
        let board = Arc::new(Board::default());
        let control = Arc::new(Control::new(side, &lab)?);
        let settings = match settings {
            Some(settings) => {
                control.send(&settings.to_string())?;
                settings
            }
            None => {
                let line = control.receive()?;
                line.parse()
                    .unwrap_or_else(|NoSettings| board.fail(&format!("the client says {line:?}")))
            }
        };
        let ledger = Arc::new(Ledger::new(settings.seed));
        let lines = listen_to_the_other(&control, &ledger, &board);
        let soak = Self {
            side,
            lab,
            settings,
            board,
            totals: Arc::default(),
            ledger,
            control,
            lines,
        };
        soak.watch();
        soak.run_phases()
    }

    fn run_phases(&self) -> Result<()> {
        self.phase(0, Duration::ZERO, |round| round < WARM_UP_ROUNDS)?;
        let start = Health::now(&self.lab);
        self.meet("start");

        let end = Instant::now() + self.settings.duration;
        self.phase(WARM_UP_ROUNDS, self.settings.duration, |_| {
            Instant::now() < end
        })?;
        let health = Health::now(&self.lab).compare(&start);
        self.meet("end");

        if let Err(problem) = self.ledger.settle() {
            self.board.fail(&problem);
        }
        let health = health.unwrap_or_else(|problem| self.board.fail(&problem));
        println!("soak: {}: {}", self.side, self.totals);
        println!("soak: {}: {}", self.side, self.ledger);
        println!("soak: {}: {health}", self.side);
        self.meet(BYE);
        self.control.close()?;
        println!("soak: {}: everything is accounted for", self.side);
        Ok(())
    }

    /// Has connections for a while, and gives everything back. Afterwards no connection is left on
    /// either side.
    fn phase(
        &self,
        first_round: u64,
        duration: Duration,
        wants: impl Fn(u64) -> bool + Sync,
    ) -> Result<()> {
        let engine = Engine::new()?;
        let (run, threads) = Run::start(
            self.settings.seed,
            engine.clone(),
            &self.board,
            &self.totals,
            &self.ledger,
            &self.control,
        );
        match self.side {
            Side::Client => {
                let listeners = self.hear_listeners();
                let endpoints = self.settings.endpoints;
                client::connect(&run, &listeners, endpoints, first_round, wants);
                self.say(OVER);
                self.hear(OVER, PATIENCE);
            }
            Side::Server => {
                self.serve(&run, duration)?;
                self.say(OVER);
            }
        }
        // All connections have ended on both sides, and all books have come.
        drop(run);
        for thread in threads {
            thread.join().expect("no thread panics");
        }
        engine.shutdown();
        self.meet("down");
        Ok(())
    }

    /// Accepts connections until the client has had its last.
    fn serve(&self, run: &Arc<Run>, duration: Duration) -> Result<()> {
        let listeners = server::listen(run, &self.lab)?;
        let (accepting, over) = bounded(0);
        thread::scope(|scope| {
            scope.spawn(|| server::accept(run, &listeners, &over));
            let ports = listeners.iter().map(|l| l.local_addr().port().to_string());
            self.say(&ports.collect::<Vec<_>>().join(" "));
            // The last connections begin when the time is over.
            self.hear(OVER, duration + 2 * PATIENCE);
            drop(accepting);
        });
        Ok(())
    }

    /// The addresses on which the server listens.
    fn hear_listeners(&self) -> Vec<SocketAddr> {
        let line = self.next_line(PATIENCE);
        line.split(' ')
            .map(|port| match port.parse() {
                Ok(port) => self.lab.peer_at(port),
                Err(_) => self.board.fail(&format!("the server says {line:?}")),
            })
            .collect()
    }

    /// Waits until the other program is there as well.
    fn meet(&self, place: &str) {
        self.say(place);
        self.hear(place, PATIENCE);
    }

    fn say(&self, line: &str) {
        if let Err(error) = self.control.send(line) {
            self.board.fail(&format!("the control connection: {error}"));
        }
    }

    fn hear(&self, expected: &str, timeout: Duration) {
        let line = self.next_line(timeout);
        if line != expected {
            self.board.fail(&format!(
                "the other side says {line:?} instead of {expected:?}"
            ));
        }
    }

    fn next_line(&self, timeout: Duration) -> String {
        self.lines
            .recv_timeout(timeout)
            .unwrap_or_else(|_| self.board.fail("the other side says nothing"))
    }

    /// Starts the thread that looks after all others, and says how far the client is.
    fn watch(&self) {
        let (board, totals) = (Arc::clone(&self.board), Arc::clone(&self.totals));
        let side = self.side;
        thread::spawn(move || {
            let start = Instant::now();
            let mut next = PROGRESS;
            loop {
                thread::sleep(Duration::from_secs(1));
                board.watch();
                if side == Side::Client && start.elapsed() >= next {
                    println!("soak: {:.0} s: {totals}", start.elapsed().as_secs_f64());
                    next += PROGRESS;
                }
            }
        });
    }
}

/// Starts the thread that takes what the other program says: books go into the ledger, all else to
/// whoever waits for it.
fn listen_to_the_other(
    control: &Arc<Control>,
    ledger: &Arc<Ledger>,
    board: &Arc<Board>,
) -> Receiver<String> {
    let (control, ledger, board) = (Arc::clone(control), Arc::clone(ledger), Arc::clone(board));
    let (heard, lines) = unbounded();
    thread::spawn(move || {
        loop {
            let line = match control.receive() {
                Ok(line) => line,
                Err(error) => board.fail(&format!("the control connection: {error}")),
            };
            match line.parse::<Book>() {
                Ok(book) => {
                    if let Err(problem) = ledger.enter(book) {
                        board.fail(&format!("connection {}: {problem}", book.connection));
                    }
                }
                Err(NoBook) => {
                    let last = line == BYE;
                    // Nobody waits for it when this program is about to end as well.
                    let _ = heard.send(line);
                    if last {
                        return;
                    }
                }
            }
        }
    });
    lines
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.duration.as_millis();
        write!(f, "{} {} {millis}", self.seed, self.endpoints)
    }
}

/// A line that is no settings.
#[derive(Debug)]
pub(crate) struct NoSettings;

impl FromStr for Settings {
    type Err = NoSettings;

    fn from_str(line: &str) -> Result<Self, NoSettings> {
        let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
        match numbers.as_deref() {
            Ok([seed, endpoints, millis]) => Ok(Self {
                seed: *seed,
                endpoints: *endpoints,
                duration: Duration::from_millis(*millis),
            }),
            _ => Err(NoSettings),
        }
    }
}
