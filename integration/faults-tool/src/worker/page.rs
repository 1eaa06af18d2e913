use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::book::Book;

/// Room for one line in a journal, of a book without a long reason.
const LINE: usize = 256;

/// The book of a connection, while it is written.
#[derive(Debug)]
pub(crate) struct Page {
    book: Mutex<Book>,
    journal: Option<Arc<File>>,
}

impl Page {
    pub(crate) fn new(connection: u32, journal: Option<Arc<File>>) -> Self {
        let book = Mutex::new(Book {
            connection,
            ..Book::default()
        });
        let page = Self { book, journal };
        page.write(|_| {});
        page
    }

    /// Changes the book. It is in the journal, where there is one, before this returns: for those
    /// who outlive this process.
    pub(crate) fn write(&self, change: impl FnOnce(&mut Book)) {
        let mut book = self.book();
        change(&mut book);
        if let Some(journal) = &self.journal {
            let place = u64::from(book.connection) * LINE as u64;
            let text = book.to_string();
            let padded = format!("{text:<0$.0$}\n", LINE - 1);
            if let Err(error) = journal.write_all_at(padded.as_bytes(), place) {
                eprintln!("faults: the journal cannot be written: {error}");
            }
        }
    }

    pub(crate) fn read(&self) -> Book {
        self.book().clone()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The books in a journal, those of connections that never were left out.
pub(crate) fn journal(text: &str) -> Vec<Book> {
    text.split('\n')
        .filter_map(|line| line.trim_matches(['\0', ' ']).parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use super::*;
    use crate::book::End;

    #[test]
    fn a_journal_outlives_its_writer() {
        let path = env::temp_dir().join(format!("faults-journal-test-{}", process::id()));
        let file = Arc::new(File::create(&path).unwrap());
        // Out of order, and not all.
        let pages = [5, 2, 0].map(|connection| Page::new(connection, Some(Arc::clone(&file))));
        pages[0].write(|book| book.received = 1_000_000);
        pages[1].write(|book| book.end = End::Broken("x".repeat(10 * LINE)));
        pages[1].write(|book| book.end = End::PeerClosed);
        let text = fs::read_to_string(&path);
        fs::remove_file(&path).unwrap();
        let expected = [2, 1, 0].map(|page| pages[page].read());
        assert_eq!(journal(&text.unwrap()), expected);
    }
}
