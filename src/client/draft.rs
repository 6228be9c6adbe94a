//! A draft: one intent on disk, from before its first attempt until its outcome is known.
//!
//! Written whole or not at all, and to the disk itself before anything is sent. It never holds a token.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::domain::operation::RequestKey;

/// The form of the file. Another one is left alone.
const VERSION: u32 = 1;

/// How draft files end.
const EXTENSION: &str = "draft";

/// The largest draft that is read, in octets: the largest body in JSON, escaped.
const DRAFT_MAX_OCTETS: u64 = 128 * 1024 * 1024;

/// Why a draft cannot be made, read or saved.
#[derive(Debug, thiserror::Error)]
pub enum DraftError {
    /// The disk would not.
    #[error("{path}: {error}")]
    Disk {
        /// Which file or directory.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
    /// It is no draft that this program knows.
    #[error("{path} is no draft of this version: {why}; it was left alone")]
    NotADraft {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another process is submitting it.
    #[error("{path} is being submitted by another process; wait for its end")]
    InUse {
        /// Which file.
        path: PathBuf,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    url: String,
    key: String,
    body: String,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    attempts: u32,
    in_doubt: bool,
}

/// A draft in use by this process alone.
#[derive(Debug)]
pub struct Draft {
    path: PathBuf,
    content: Content,
    key: RequestKey,
    /// Held for as long as the draft is in use; the system lets go of it when the process ends.
    _lock: File,
}

impl Draft {
    /// Saves a new intent in `directory`, which is made if it is not there. Nothing may be sent before this returns.
    ///
    /// # Errors
    /// When it cannot be saved.
    pub fn create(directory: &Path, url: &str, key: RequestKey, body: String) -> Result<Self, DraftError> {
        fs::create_dir_all(directory).map_err(|error| disk(directory, error))?;
        let path = directory.join(format!("{}.{EXTENSION}", uuid::Uuid::now_v7()));
        let content = Content {
            version: VERSION,
            url: url.to_owned(),
            key: key.as_str().to_owned(),
            body,
            created_at: OffsetDateTime::now_utc(),
            attempts: 0,
            in_doubt: false,
        };
        let lock = lock(&path)?;
        let draft = Self { path, content, key, _lock: lock };
        draft.save()?;
        Ok(draft)
    }

    /// Reads a draft that is there, and keeps other processes from it.
    ///
    /// # Errors
    /// When it cannot be read, is no draft, or is in use.
    pub fn open(path: &Path) -> Result<Self, DraftError> {
        let length = fs::metadata(path).map_err(|error| disk(path, error))?.len();
        let not_one = |why: String| DraftError::NotADraft { path: path.to_owned(), why };
        if length > DRAFT_MAX_OCTETS {
            return Err(not_one("it is too large".to_owned()));
        }
        let lock = lock(path)?;
        // Read under the lock: another process may have changed it before it ended.
        let text = fs::read(path).map_err(|error| disk(path, error))?;
        let content: Content = serde_json::from_slice(&text).map_err(|error| {
            // The message may quote the body.
            not_one(format!("line {}, column {}", error.line(), error.column()))
        })?;
        if content.version != VERSION {
            return Err(not_one(format!("it has version {}", content.version)));
        }
        let key = RequestKey::new(content.key.clone()).map_err(|problem| not_one(format!("its key {problem}")))?;
        Ok(Self { path: path.to_owned(), content, key, _lock: lock })
    }

    /// The drafts in a directory, the oldest first; none where the directory is not there.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn list(directory: &Path) -> Result<Vec<PathBuf>, DraftError> {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(disk(directory, error)),
        };
        let mut drafts = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| disk(directory, error))?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION) {
                drafts.push(path);
            }
        }
        // Their names begin with their time.
        drafts.sort();
        Ok(drafts)
    }

    /// Ends it: its outcome is known, and kept elsewhere.
    ///
    /// # Errors
    /// When it cannot be removed. It may be submitted again then, which is safe.
    pub fn remove(self) -> Result<(), DraftError> {
        fs::remove_file(&self.path).map_err(|error| disk(&self.path, error))?;
        // A lock file that stays does no harm.
        let _ = fs::remove_file(lock_path(&self.path));
        Ok(())
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where it goes.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.content.url
    }

    /// Its key, the same for ever.
    #[must_use]
    pub fn key(&self) -> &RequestKey {
        &self.key
    }

    /// Its exact body, the same for ever.
    #[must_use]
    pub fn body(&self) -> &str {
        &self.content.body
    }

    /// When it was made, by this machine's clock.
    #[must_use]
    pub fn created_at(&self) -> OffsetDateTime {
        self.content.created_at
    }

    /// Attempts begun, in all runs.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.content.attempts
    }

    /// Whether an attempt may have stored it.
    #[must_use]
    pub fn in_doubt(&self) -> bool {
        self.content.in_doubt
    }

    /// Saves whether an attempt may have stored it: `true` counts an attempt about to begin.
    pub(super) fn save_doubt(&mut self, doubt: bool) -> Result<(), DraftError> {
        if doubt {
            self.content.attempts = self.content.attempts.saturating_add(1);
        }
        self.content.in_doubt = doubt;
        self.save()
    }

    /// Writes it beside the old one, to the disk, and then in its place.
    fn save(&self) -> Result<(), DraftError> {
        let failed = |error| disk(&self.path, error);
        let directory = self.path.parent().unwrap_or(Path::new("."));
        let text = serde_json::to_vec_pretty(&self.content).map_err(|error| failed(io::Error::other(error)))?;
        // Readable by its owner alone, as tempfile makes it: it holds the message.
        let mut file = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
        file.write_all(&text).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(&self.path).map_err(|error| failed(error.error))?;
        // The name, too, has to reach the disk.
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
    }
}

fn lock_path(path: &Path) -> PathBuf {
    path.with_extension("lock")
}

/// A lock beside the draft: the draft's own file is replaced at every save.
fn lock(path: &Path) -> Result<File, DraftError> {
    let name = lock_path(path);
    let file = File::create(&name).map_err(|error| disk(&name, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DraftError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(disk(&name, error)),
    }
}

fn disk(path: &Path, error: io::Error) -> DraftError {
    DraftError::Disk { path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn key() -> RequestKey {
        RequestKey::new("k\"1").unwrap()
    }

    #[test]
    fn a_draft_is_read_as_it_was_saved_and_by_its_owner_alone() {
        let directory = tempfile::TempDir::new().unwrap();
        let body = "{\"a\":  \"\\u00e9\u{e9}\n\"}";
        let mut draft = Draft::create(directory.path(), "https://x/v1/messages", key(), body.to_owned()).unwrap();
        draft.save_doubt(true).unwrap();
        let path = draft.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0);
        drop(draft);
        assert_eq!(Draft::list(directory.path()).unwrap(), [path.as_path()]);
        let draft = Draft::open(&path).unwrap();
        assert_eq!((draft.key(), draft.body(), draft.in_doubt(), draft.attempts()), (&key(), body, true, 1));
        draft.remove().unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn two_processes_never_submit_one_draft() {
        let directory = tempfile::TempDir::new().unwrap();
        let draft = Draft::create(directory.path(), "https://x/", key(), String::new()).unwrap();
        let path = draft.path().to_owned();
        assert!(matches!(Draft::open(&path), Err(DraftError::InUse { .. })));
        drop(draft);
        Draft::open(&path).unwrap();
    }

    #[test]
    fn what_is_no_draft_is_left_alone_and_not_quoted() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("x.draft");
        let good = r#"{"version":1,"url":"u","key":"k","body":"secret","created_at":"2026-12-01T00:00:00Z","attempts":0,"in_doubt":false}"#;
        for text in [
            "",
            "secret",
            "{\"secret\": 1}",
            &good.replace("\"version\":1", "\"version\":2"),
            &good.replace("\"k\"", "\"\""),
            &good[..60],
        ] {
            fs::write(&path, text).unwrap();
            let error = Draft::open(&path).unwrap_err().to_string();
            assert!(error.contains("x.draft") && error.contains("left alone") && !error.contains("secret"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::write(&path, good).unwrap();
        Draft::open(&path).unwrap();
    }

    #[test]
    fn where_nothing_can_be_saved_there_is_no_draft() {
        let directory = tempfile::TempDir::new().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Draft::create(&file.join("drafts"), "https://x/", key(), String::new()).unwrap_err();
        assert!(matches!(error, DraftError::Disk { .. }), "{error}");
        assert!(Draft::list(&directory.path().join("nowhere")).unwrap().is_empty());
    }
}
