//! Requests and answers between hosts: lists of texts, each with its length in front.

use std::io::{self, Read, Write};

/// Longer ones can only mean that the two sides lost step.
const MOST: u32 = 1 << 26;

pub(crate) fn write(to: &mut impl Write, texts: &[impl AsRef<str>]) -> io::Result<()> {
    let mut bytes = (texts.len() as u32).to_le_bytes().to_vec();
    for text in texts {
        bytes.extend((text.as_ref().len() as u32).to_le_bytes());
        bytes.extend(text.as_ref().as_bytes());
    }
    to.write_all(&bytes)
}

pub(crate) fn read(from: &mut impl Read) -> io::Result<Vec<String>> {
    let count = number(from)?;
    (0..count)
        .map(|_| {
            let mut text = vec![0; number(from)? as usize];
            from.read_exact(&mut text)?;
            String::from_utf8(text).map_err(io::Error::other)
        })
        .collect()
}

fn number(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    match u32::from_le_bytes(bytes) {
        number @ 0..=MOST => Ok(number),
        number => Err(io::Error::other(format!("a length of {number}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_survive_the_wire() {
        let mut wire = Vec::new();
        write(&mut wire, &["start", "", "two\nlines", "\0"]).unwrap();
        write(&mut wire, &[""; 0]).unwrap();
        let mut wire = &wire[..];
        assert_eq!(read(&mut wire).unwrap(), ["start", "", "two\nlines", "\0"]);
        assert!(read(&mut wire).unwrap().is_empty());
        assert!(read(&mut wire).is_err(), "end of the wire");
        assert!(read(&mut &[0xff; 8][..]).is_err());
    }
}
