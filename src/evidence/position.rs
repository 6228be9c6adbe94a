//! Where reading of a log stopped, so that the next run goes on there, whatever rotation has done to the file meanwhile.
//!
//! A file is known again by its first octets, not by its name or its place on the disk: renamed, copied or packed by gzip it is
//! still the same log. Positions count the octets of the unpacked text.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::{exim, postfix};

/// Octets by which a file is known again: some lines, each with a time.
const HEAD_OCTETS: usize = 1_024;

/// How a file that gzip made begins (RFC 1952, 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// All that a run leaves to the next.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct State {
    /// By the path of the log.
    logs: BTreeMap<PathBuf, Position>,
    /// The mail that is being followed.
    pub(super) postfix: postfix::Follower,
    pub(super) exim: exim::Follower,
}

/// How far a log was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    /// The length and the SHA-256 of its first octets.
    head_octets: usize,
    head: String,
    /// Octets read, to the end of a line.
    octets: u64,
}

/// A file to read, from where.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// The file.
    pub path: PathBuf,
    /// Octets of its text to pass over.
    pub from: u64,
}

/// What there is to read of a log.
#[derive(Debug, PartialEq, Eq)]
pub struct Parts {
    /// The oldest first; the last one is the log itself.
    pub parts: Vec<Part>,
    /// The file that was read last is not there any more: what was written to it since may be unread.
    pub lost: bool,
}

impl State {
    /// Reads what an earlier run left; nothing where there was none.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn load(path: &Path) -> io::Result<Self> {
        match std::fs::read(path) {
            Ok(octets) => serde_json::from_slice(&octets).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Leaves it to the next run: whole, or as it was before.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    }

    /// What is to be read of a log: what was rotated away since the last run, then the log itself.
    ///
    /// # Errors
    /// When the log or its directory cannot be read.
    pub fn parts(&self, log: &Path) -> io::Result<Parts> {
        let whole = |path: &Path| Part { path: path.to_owned(), from: 0 };
        let Some(known) = self.logs.get(log) else { return Ok(Parts { parts: vec![whole(log)], lost: false }) };
        if known.is_of(log)? {
            // Cut off since: what was written to it before and after is not told apart any more.
            let cut = !is_packed(log)? && std::fs::metadata(log)?.len() < known.octets;
            if cut {
                return Ok(Parts { parts: vec![whole(log)], lost: true });
            }
            let parts = vec![Part { path: log.to_owned(), from: known.octets }];
            return Ok(Parts { parts, lost: false });
        }
        // The oldest first: the one that was read last, and whatever came after it.
        let rotated = siblings(log)?;
        let mut parts = Vec::new();
        for path in &rotated {
            if !parts.is_empty() {
                parts.push(whole(path));
            } else if known.is_of(path)? {
                parts.push(Part { path: path.clone(), from: known.octets });
            }
        }
        let lost = parts.is_empty();
        parts.push(whole(log));
        Ok(Parts { parts, lost })
    }

    /// Takes note of how far a log was read: the one that begins with `head`.
    pub fn note(&mut self, log: &Path, head: &[u8], octets: u64) {
        let most = head.len().min(usize::try_from(octets).unwrap_or(HEAD_OCTETS));
        let head = head.get(..most).unwrap_or_default();
        if head.is_empty() {
            // An empty log, just rotated: what was read last leads on from the rotated one.
            return;
        }
        self.logs.insert(log.to_owned(), Position { head_octets: head.len(), head: hash(head), octets });
    }
}

impl Position {
    /// Whether a file is the one that this position is in.
    fn is_of(&self, path: &Path) -> io::Result<bool> {
        let mut head = Vec::new();
        // What is no gzip after all, or is being written, is not it.
        if open(path)?.take(self.head_octets as u64).read_to_end(&mut head).is_err() {
            return Ok(false);
        }
        Ok(head.len() == self.head_octets && hash(&head) == self.head)
    }
}

fn is_packed(path: &Path) -> io::Result<bool> {
    let mut magic = [0; 2];
    Ok(File::open(path)?.read(&mut magic)? == 2 && magic == GZIP)
}

fn hash(octets: &[u8]) -> String {
    digest(&SHA256, octets).as_ref().iter().map(|octet| format!("{octet:02x}")).collect()
}

/// The files beside a log whose names begin with its name, the oldest first.
fn siblings(log: &Path) -> io::Result<Vec<PathBuf>> {
    let directory = log.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let other = entry.file_name().to_string_lossy().into_owned();
        let metadata = entry.metadata()?;
        if metadata.is_file() && other != name && other.starts_with(&name) {
            found.push((metadata.modified()?, entry.path()));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Opens a log, plain or packed by gzip.
///
/// # Errors
/// When it cannot be read.
pub fn open(path: &Path) -> io::Result<Box<dyn BufRead + Send>> {
    plain(Box::new(File::open(path)?))
}

/// Opens a part of a log where it begins. Returns the first octets of its file, too: both of the one file that was opened, whatever
/// happens to its name meanwhile.
///
/// # Errors
/// When it cannot be read so far.
pub fn open_at(part: &Part) -> io::Result<(Vec<u8>, Box<dyn BufRead + Send>)> {
    let mut file = File::open(&part.path)?;
    let mut head = Vec::new();
    (&mut file).take(HEAD_OCTETS as u64).read_to_end(&mut head)?;
    if !head.starts_with(&GZIP) {
        file.seek(SeekFrom::Start(part.from))?;
        return Ok((head, Box::new(BufReader::new(file))));
    }
    file.rewind()?;
    let mut log = plain(Box::new(file))?;
    head.clear();
    (&mut log).take(part.from.min(HEAD_OCTETS as u64)).read_to_end(&mut head)?;
    io::copy(&mut (&mut log).take(part.from.saturating_sub(head.len() as u64)), &mut io::sink())?;
    Ok((head, log))
}

/// The log as it was before gzip had it.
///
/// # Errors
/// When it cannot be read.
pub fn plain(log: Box<dyn Read + Send>) -> io::Result<Box<dyn BufRead + Send>> {
    let mut log = BufReader::new(log);
    let gzip = log.fill_buf()?.starts_with(&GZIP);
    // Rotated logs are often several gzip members in one file.
    Ok(if gzip { Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(log))) } else { Box::new(log) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn gzip(path: &Path, text: &str) {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(text.as_bytes()).unwrap();
        fs::write(path, packed.finish().unwrap()).unwrap();
    }

    fn rest(state: &State, log: &Path) -> (Vec<String>, bool) {
        let parts = state.parts(log).unwrap();
        let read = |part| {
            let mut text = String::new();
            open_at(part).unwrap().1.read_to_string(&mut text).unwrap();
            text
        };
        (parts.parts.iter().map(read).collect(), parts.lost)
    }

    #[test]
    fn what_was_read_is_not_read_again_whatever_rotation_did() {
        let directory = tempfile::TempDir::new().unwrap();
        let log = directory.path().join("mail.log");
        let at = |name: &str| directory.path().join(name);
        let mut state = State::default();
        fs::write(&log, "").unwrap();
        state.note(&log, b"", 0);
        fs::write(&log, "one\ntwo\n").unwrap();
        assert_eq!(rest(&state, &log), (vec!["one\ntwo\n".to_owned()], false));
        state.note(&log, b"one\ntwo\n", 8);
        assert_eq!(rest(&state, &log), (vec![String::new()], false));
        fs::write(&log, "one\ntwo\nthree\n").unwrap();
        assert_eq!(rest(&state, &log), (vec!["three\n".to_owned()], false));

        fs::write(&log, "one\n").unwrap();
        assert!(rest(&state, &log).1, "cut off, and known by less than its head");
        fs::write(&log, "one\ntwo\n").unwrap();
        let mut cut = State::default();
        cut.note(&log, b"one\n", 12);
        assert_eq!(rest(&cut, &log), (vec!["one\ntwo\n".to_owned()], true));
        fs::write(&log, "one\ntwo\nthree\n").unwrap();

        // Saved and read again, it is the same.
        let file = at("state.json");
        state.save(&file).unwrap();
        let state = State::load(&file).unwrap();
        assert_eq!(rest(&state, &log), (vec!["three\n".to_owned()], false));
        assert_eq!(rest(&State::load(&at("none")).unwrap(), &log).0, ["one\ntwo\nthree\n"]);

        // Rotated by a new name, twice, the older one packed.
        fs::rename(&log, at("mail.log.1")).unwrap();
        fs::write(&log, "four\n").unwrap();
        assert_eq!(rest(&state, &log), (vec!["three\n".to_owned(), "four\n".to_owned()], false));
        fs::remove_file(at("mail.log.1")).unwrap();
        gzip(&at("mail.log.2.gz"), "one\ntwo\nthree\n");
        let hour_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3_600);
        File::options().write(true).open(at("mail.log.2.gz")).unwrap().set_modified(hour_ago).unwrap();
        fs::rename(&log, at("mail.log.1")).unwrap();
        fs::write(&log, "five\n").unwrap();
        assert_eq!(rest(&state, &log).0, ["three\n", "four\n", "five\n"]);

        // Read just after it was rotated, when the new one is still empty: the place is kept.
        fs::write(&log, "").unwrap();
        let mut state = state;
        state.note(&log, b"", 0);
        assert_eq!(rest(&state, &log).0, ["three\n", "four\n", ""]);
        fs::write(&log, "five\n").unwrap();

        // Gone altogether: that is said.
        fs::remove_file(at("mail.log.2.gz")).unwrap();
        assert_eq!(rest(&state, &log), (vec!["five\n".to_owned()], true));
    }

    #[test]
    fn a_state_that_is_broken_is_not_taken_for_none() {
        let directory = tempfile::TempDir::new().unwrap();
        let file = directory.path().join("state.json");
        fs::write(&file, "{").unwrap();
        assert!(State::load(&file).is_err());
    }
}
