//! Reads values out of a section, one key after the other, and writes down everything that is wrong instead of stopping.
//!
//! What is wrong is replaced by the default, so that the rules across keys can still be checked. A secret's value is never
//! written down.

use std::time::Duration;

use config::{Map, Value, ValueKind};
use humantime_serde::re::humantime;
use serde::Serialize;

use super::layers::{DEFAULT_ORIGIN, env_origin};

/// What a secret looks like in every output.
pub const REDACTED: &str = "<redacted>";

/// The longest duration: a year and a day. Anything longer is a mistake, and sums of instants stay far from overflow.
const DURATION_MAX: Duration = Duration::from_secs(366 * 86_400);

/// One key that is in force.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// The key, such as `lease.duration`.
    pub key: String,
    /// Its value; secrets are redacted.
    pub value: serde_json::Value,
    /// `default`, the file, or the environment variable that it came from.
    pub origin: String,
}

/// What reading found.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) problems: Vec<String>,
    pub(super) warnings: Vec<String>,
    pub(super) entries: Vec<Entry>,
}

impl Notes {
    /// Writes a problem down, once.
    pub(super) fn problem(&mut self, problem: impl Into<String>) {
        let problem = problem.into();
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    pub(super) fn warning(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }
}

pub(super) type Table = Map<String, Value>;

/// A section being read: its own table first, then where its defaults stand.
pub(super) struct Section {
    path: String,
    layers: Vec<(String, Table)>,
    asked: Vec<&'static str>,
}

impl Section {
    pub(super) fn new(path: impl Into<String>, given: Table) -> Self {
        let path = path.into();
        Self { layers: vec![(path.clone(), given)], path, asked: Vec::new() }
    }

    /// Adds a table that is asked when the earlier ones do not have a key; `path` is what its keys are called.
    pub(super) fn or(mut self, path: impl Into<String>, defaults: Table) -> Self {
        self.layers.push((path.into(), defaults));
        self
    }

    /// The full name of a key.
    pub(super) fn name(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Whether the section's own table has `key`.
    pub(super) fn gives(&self, key: &str) -> bool {
        self.layers.first().is_some_and(|(_, table)| table.contains_key(key))
    }

    /// The section `key` inside this one, with the same places for defaults.
    pub(super) fn child(&mut self, key: &'static str, notes: &mut Notes) -> Self {
        self.asked.push(key);
        let mut child = Self { path: self.name(key), layers: Vec::new(), asked: Vec::new() };
        for (path, table) in &mut self.layers {
            let name = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            let inner = table.remove(key).map(|value| as_table(value, &name, notes)).unwrap_or_default();
            child.layers.push((name, inner));
        }
        child
    }

    /// The tables inside this section by name: for sections whose keys are names that the reader of the file chose.
    pub(super) fn tables(self, notes: &mut Notes) -> Vec<(String, Table)> {
        let path = self.path;
        let given = self.layers.into_iter().next().map(|(_, table)| table).unwrap_or_default();
        let mut tables: Vec<_> = given
            .into_iter()
            .map(|(name, value)| {
                let table = as_table(value, &format!("{path}.{name}"), notes);
                (name, table)
            })
            .collect();
        tables.sort_by(|(a, _), (b, _)| a.cmp(b));
        tables
    }

    /// The section's own table and the one that was added first.
    pub(super) fn into_tables(self) -> (Table, Table) {
        let mut tables = self.layers.into_iter().map(|(_, table)| table);
        (tables.next().unwrap_or_default(), tables.next().unwrap_or_default())
    }

    /// The names of this section's own keys, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.layers.first().into_iter().flat_map(|(_, table)| table.keys().cloned()).collect();
        names.sort();
        names
    }

    /// The value of `key`; `None` if nobody gives one. What `parse` refuses is a problem, and the next place is asked.
    pub(super) fn optional<T>(
        &mut self,
        key: &'static str,
        notes: &mut Notes,
        parse: impl Fn(&ValueKind) -> Result<T, String>,
    ) -> Option<T> {
        self.asked.push(key);
        self.lookup(key, notes, false, parse)
    }

    /// The value of a secret: not shown in any message.
    pub(super) fn secret(&mut self, key: &'static str, notes: &mut Notes) -> Option<String> {
        self.asked.push(key);
        self.lookup(key, notes, true, text)
    }

    /// A secret that must be given: itself, or a file that holds it.
    pub(super) fn secret_or_file(
        &mut self,
        key: &'static str,
        file_key: &'static str,
        notes: &mut Notes,
    ) -> Option<String> {
        let secret = self.secret(key, notes).filter(|secret| !secret.is_empty());
        let file = self.optional(file_key, notes, text);
        let (key, file_key) = (self.name(key), self.name(file_key));
        match (secret, file) {
            (Some(_), Some(_)) => notes.problem(format!("{key} and {file_key} are both set; keep one")),
            (None, None) => notes.problem(format!("{key} is missing: set it, or {file_key}")),
            (Some(secret), None) => return Some(secret),
            (None, Some(file)) => match std::fs::read_to_string(&file) {
                // Editors and `echo` end a file with a line feed that is no part of the secret.
                Ok(text) => return Some(text.trim_end_matches(['\r', '\n']).to_owned()),
                Err(error) => notes.problem(format!("{file_key}: {file} cannot be read: {error}")),
            },
        }
        None
    }

    /// The value of a key that always has a default.
    pub(super) fn value<T: Default>(
        &mut self,
        key: &'static str,
        notes: &mut Notes,
        parse: impl Fn(&ValueKind) -> Result<T, String>,
    ) -> T {
        self.optional(key, notes, parse).unwrap_or_else(|| {
            notes.problem(format!("{} is missing", self.name(key)));
            T::default()
        })
    }

    /// The value of a key whose name the reader of the file chose.
    pub(super) fn named<T>(
        &mut self,
        key: &str,
        notes: &mut Notes,
        parse: impl Fn(&ValueKind) -> Result<T, String>,
    ) -> Option<T> {
        self.lookup(key, notes, false, parse)
    }

    fn lookup<T>(
        &mut self,
        key: &str,
        notes: &mut Notes,
        secret: bool,
        parse: impl Fn(&ValueKind) -> Result<T, String>,
    ) -> Option<T> {
        let full = self.name(key);
        for (path, table) in &mut self.layers {
            let Some(value) = table.remove(key).filter(|value| !matches!(value.kind, ValueKind::Nil)) else { continue };
            let name = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            let origin = env_origin(value.origin().unwrap_or(DEFAULT_ORIGIN), &name);
            match parse(&value.kind) {
                Ok(parsed) => {
                    let value = if secret && !is_empty(&value.kind) { REDACTED.into() } else { shown(&value.kind) };
                    notes.entries.push(Entry { key: full, value, origin });
                    return Some(parsed);
                }
                Err(expected) => {
                    let found = if secret { "its value".to_owned() } else { shown(&value.kind).to_string() };
                    notes.problem(format!("{name} (from {origin}): {found} is not {expected}"));
                }
            }
        }
        None
    }

    /// Ends the section: a key that nobody asked for is a problem.
    pub(super) fn end(self, notes: &mut Notes) {
        let mut unknown: Vec<_> = self.layers.first().into_iter().flat_map(|(_, table)| table.iter()).collect();
        unknown.sort_by_key(|(key, _)| *key);
        for (key, value) in unknown {
            let name = self.name(key);
            let origin = env_origin(value.origin().unwrap_or(DEFAULT_ORIGIN), &name);
            let known = self.asked.join(", ");
            let place =
                if self.path.is_empty() { "the sections are".to_owned() } else { format!("[{}] knows", self.path) };
            notes.problem(format!("unknown key {name} (from {origin}); {place} {known}"));
        }
    }
}

fn as_table(value: Value, name: &str, notes: &mut Notes) -> Table {
    let origin = env_origin(value.origin().unwrap_or(DEFAULT_ORIGIN), name);
    if let ValueKind::Table(table) = value.kind {
        return table;
    }
    notes.problem(format!("{name} (from {origin}) is not a section; write [{name}] and its keys below it"));
    Table::new()
}

fn is_empty(kind: &ValueKind) -> bool {
    matches!(kind, ValueKind::String(text) if text.is_empty())
}

fn shown(kind: &ValueKind) -> serde_json::Value {
    match kind {
        ValueKind::Nil => serde_json::Value::Null,
        ValueKind::Boolean(value) => (*value).into(),
        ValueKind::I64(value) => (*value).into(),
        ValueKind::U64(value) => (*value).into(),
        ValueKind::I128(value) => value.to_string().into(),
        ValueKind::U128(value) => value.to_string().into(),
        ValueKind::Float(value) => (*value).into(),
        ValueKind::String(value) => value.as_str().into(),
        ValueKind::Array(items) => items.iter().map(|item| shown(&item.kind)).collect(),
        // Tables are read key by key; where one stands for a value it may hold anything.
        ValueKind::Table(_) => "a section".into(),
    }
}

/// Any text.
pub(super) fn text(kind: &ValueKind) -> Result<String, String> {
    match kind {
        ValueKind::String(text) => Ok(text.clone()),
        _ => Err("a text in quotes".to_owned()),
    }
}

/// A duration with a unit, `0s` included.
pub(super) fn duration(kind: &ValueKind) -> Result<Duration, String> {
    let expected = || "a duration with a unit, such as \"30s\" or \"5m\"".to_owned();
    let duration = humantime::parse_duration(text(kind).map_err(|_| expected())?.trim()).map_err(|_| expected())?;
    if duration > DURATION_MAX {
        return Err("a duration of at most 366 days".to_owned());
    }
    Ok(duration)
}

/// A duration of more than nought.
pub(super) fn some_time(kind: &ValueKind) -> Result<Duration, String> {
    let duration = duration(kind)?;
    if duration.is_zero() { Err("a duration of more than nought".to_owned()) } else { Ok(duration) }
}

/// A whole number of at least one that `T` holds.
pub(super) fn count<T: TryFrom<u64>>(kind: &ValueKind) -> Result<T, String> {
    let number = match kind {
        ValueKind::I64(number) => u64::try_from(*number).ok(),
        ValueKind::U64(number) => Some(*number),
        // The environment knows only text.
        ValueKind::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    let expected = || format!("a whole number from 1 to {}", max_of::<T>());
    number.filter(|&number| number > 0).and_then(|number| T::try_from(number).ok()).ok_or_else(expected)
}

fn max_of<T>() -> u64 {
    u64::MAX >> (64 - 8 * size_of::<T>().clamp(1, 8))
}

/// A number of nought or more, and at most a million: a faster rate is no limit at all.
pub(super) fn rate(kind: &ValueKind) -> Result<f64, String> {
    let number = match kind {
        #[expect(clippy::cast_precision_loss, reason = "a rate that large is refused anyway")]
        ValueKind::I64(number) => Some(*number as f64),
        ValueKind::Float(number) => Some(*number),
        ValueKind::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    let expected = || "a number from 0 (no limit) to 1000000".to_owned();
    number.filter(|number| (0.0..=1e6).contains(number)).ok_or_else(expected)
}

/// `true` or `false`.
pub(super) fn switch(kind: &ValueKind) -> Result<bool, String> {
    match kind {
        ValueKind::Boolean(value) => Ok(*value),
        ValueKind::String(text) if text == "true" => Ok(true),
        ValueKind::String(text) if text == "false" => Ok(false),
        _ => Err("true or false".to_owned()),
    }
}

/// A list of texts; in the environment, separated by commas.
pub(super) fn list(kind: &ValueKind) -> Result<Vec<String>, String> {
    let expected = || "a list of names, such as [\"primary\", \"backup\"]".to_owned();
    let items: Vec<String> = match kind {
        ValueKind::Array(items) => {
            items.iter().map(|item| text(&item.kind)).collect::<Result<_, _>>().map_err(|_| expected())?
        }
        ValueKind::String(text) => text.split(',').map(|item| item.trim().to_owned()).collect(),
        _ => return Err(expected()),
    };
    if items.is_empty() || items.iter().any(String::is_empty) { Err(expected()) } else { Ok(items) }
}

/// One of the words in `choices`.
pub(super) fn choice<T: Copy>(choices: &'static [(&'static str, T)]) -> impl Fn(&ValueKind) -> Result<T, String> {
    move |kind| {
        let given = text(kind).unwrap_or_default();
        choices.iter().find(|(word, _)| *word == given).map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<_> = choices.iter().map(|(word, _)| format!("{word:?}")).collect();
            format!("one of {}", words.join(", "))
        })
    }
}
