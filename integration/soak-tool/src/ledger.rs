use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use toolbox::Side;

use crate::{
    book::{Book, compare},
    plan::Plan,
};

/// The books of both sides: each connection is accounted for when both are there.
#[derive(Debug)]
pub(crate) struct Ledger {
    seed: u64,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    /// Books that wait for the other side's.
    single: HashMap<u64, Book>,
    /// How many connections were accounted for, by their end.
    ends: BTreeMap<&'static str, u64>,
    messages: u64,
    bytes: u64,
}

impl Ledger {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            pages: Mutex::default(),
        }
    }

    /// Enters one side's book, and compares the two when both are there.
    ///
    /// # Errors
    ///
    /// What does not fit.
    pub(crate) fn enter(&self, book: Book) -> Result<(), String> {
        let mut pages = self.pages();
        let Some(other) = pages.single.remove(&book.connection) else {
            pages.single.insert(book.connection, book);
            return Ok(());
        };
        let books = match book.side {
            Side::Client => [&book, &other],
            Side::Server => [&other, &book],
        };
        let plan = Plan::new(self.seed, book.connection);
        if book.side == other.side {
            return Err(format!("the {} has two books", book.side));
        }
        compare(&plan, books)
            .map_err(|problem| format!("{problem}; {plan:?}; {}; {}", books[0], books[1]))?;
        *pages.ends.entry(plan.end.name()).or_default() += 1;
        for book in books {
            pages.messages += book.received.messages;
            pages.bytes += book.received.bytes;
        }
        Ok(())
    }

    /// All connections have ended.
    ///
    /// # Errors
    ///
    /// The books of which the other side knows nothing.
    pub(crate) fn settle(&self) -> Result<(), String> {
        let pages = self.pages();
        if pages.single.is_empty() {
            return Ok(());
        }
        let lines: Vec<_> = pages.single.values().map(Book::to_string).collect();
        Err(format!("books without a counterpart: {}", lines.join("; ")))
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages = self.pages();
        let connections: u64 = pages.ends.values().sum();
        write!(
            f,
            "{connections} connections with {} messages and {:.1} MB accounted for",
            pages.messages,
            pages.bytes as f64 / 1e6
        )?;
        for (place, (name, count)) in pages.ends.iter().enumerate() {
            let separator = if place == 0 { ":" } else { "," };
            write!(f, "{separator} {count} {name}")?;
        }
        Ok(())
    }
}
