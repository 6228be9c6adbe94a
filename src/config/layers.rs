//! Where settings come from: the built-in defaults, a file, the environment, the later over the earlier.
//!
//! The only place that reads the environment. It never shows a value: a broken line may hold a secret.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use config::{Config, ConfigError, File, FileFormat, Map, Source, Value, ValueKind};

use super::Invalid;
use super::reader::Table;

const DEFAULTS: &str = include_str!("../../config/default.toml");

/// What `config check` calls the built-in defaults.
pub(super) const DEFAULT_ORIGIN: &str = "default";

const ENV_PREFIX: &str = "OUTBOXD";
const ENV_SEPARATOR: &str = "__";
const ENV_ORIGIN: &str = "the environment";

/// The file that is read if none is named and this one exists.
const FILE: &str = "outboxd.toml";

/// Everything that settings are made from.
#[derive(Default)]
pub struct Sources {
    /// The configuration file: its name and its text.
    pub file: Option<(PathBuf, String)>,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// This machine's name.
    pub host_name: String,
}

impl Sources {
    /// The sources of this process: the file `explicit`, else `OUTBOXD_CONFIG`, else `./outboxd.toml` if there is one.
    ///
    /// # Errors
    /// When the named file cannot be read, or a variable is not Unicode.
    pub fn of_this_process(explicit: Option<&Path>) -> Result<Self, Invalid> {
        let mut problems = Vec::new();
        let mut env = BTreeMap::new();
        for (name, value) in std::env::vars_os() {
            let Some(name) = name.to_str() else { continue };
            match value.into_string() {
                Ok(value) => drop(env.insert(name.to_owned(), value)),
                Err(_) if name.starts_with(ENV_PREFIX) => problems.push(format!("the variable {name} is not Unicode")),
                Err(_) => {}
            }
        }
        let named = explicit.map(Path::to_owned).or_else(|| env.get("OUTBOXD_CONFIG").map(PathBuf::from));
        let path = named.clone().or_else(|| Some(PathBuf::from(FILE)).filter(|path| path.exists()));
        let mut file = None;
        if let Some(path) = path {
            match std::fs::read_to_string(&path) {
                Ok(text) => file = Some((path, text)),
                Err(error) => {
                    problems.push(format!("the configuration file {} cannot be read: {error}", path.display()))
                }
            }
        }
        if !problems.is_empty() {
            return Err(Invalid { problems });
        }
        let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned());
        let host_name = host_name.ok().or_else(|| env.get("HOSTNAME").cloned()).filter(|name| !name.is_empty());
        Ok(Self { file, env, host_name: host_name.unwrap_or_else(|| "worker".to_owned()) })
    }

    /// The defaults alone, and all layers laid over one another.
    pub(super) fn layers(&self) -> Result<(Table, Table), Invalid> {
        let defaults = || Layer { origin: DEFAULT_ORIGIN.to_owned(), text: DEFAULTS.to_owned() };
        let mut all = Config::builder().add_source(defaults());
        if let Some((path, text)) = &self.file {
            all = all.add_source(Layer { origin: path.display().to_string(), text: text.clone() });
        }
        // The crate lower-cases names before it compares; a mistyped OutboxD__ would otherwise be taken, too.
        let prefix = format!("{ENV_PREFIX}{ENV_SEPARATOR}");
        let ours = self.env.iter().filter(|(name, _)| name.starts_with(&prefix));
        let env = config::Environment::with_prefix(ENV_PREFIX)
            .prefix_separator(ENV_SEPARATOR)
            .separator(ENV_SEPARATOR)
            .source(Some(ours.map(|(name, value)| (name.clone(), value.clone())).collect()));
        let all = all.add_source(env);
        let table = |config: Result<Config, ConfigError>| {
            config.and_then(|config| config.cache.into_table()).map_err(|error| Invalid::one(harmless(&error)))
        };
        Ok((table(Config::builder().add_source(defaults()).build())?, table(all.build())?))
    }

    /// The address of the database where the configuration gives none.
    pub(super) fn database_url(&self) -> Option<&str> {
        self.env.get("DATABASE_URL").map(String::as_str).filter(|url| !url.is_empty())
    }
}

// The text and the environment hold secrets.
impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").field("file", &self.file.as_ref().map(|(path, _)| path)).finish_non_exhaustive()
    }
}

/// TOML text whose values remember where they came from.
#[derive(Clone)]
struct Layer {
    origin: String,
    text: String,
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Layer").field(&self.origin).finish()
    }
}

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        let values = File::from_str(&self.text, FileFormat::Toml)
            .collect()
            .map_err(|error| ConfigError::Message(format!("{}: {}", self.origin, harmless(&error))))?;
        Ok(values.into_iter().map(|(key, value)| (key, stamped(value, &self.origin))).collect())
    }
}

fn stamped(value: Value, origin: &String) -> Value {
    let kind = match value.kind {
        ValueKind::Table(table) => {
            ValueKind::Table(table.into_iter().map(|(key, value)| (key, stamped(value, origin))).collect())
        }
        ValueKind::Array(items) => ValueKind::Array(items.into_iter().map(|item| stamped(item, origin)).collect()),
        scalar => scalar,
    };
    Value::new(Some(origin), kind)
}

/// The error without the line of the file that the TOML parser quotes: it may hold a secret.
fn harmless(error: &ConfigError) -> String {
    let text = error.to_string();
    let quoted =
        |line: &&str| line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit()).trim_start().starts_with('|');
    let lines: Vec<&str> =
        text.lines().filter(|line| !quoted(line)).map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(": ")
}

/// The name of the environment variable for a key, for messages.
pub(super) fn env_origin(origin: &str, key: &str) -> String {
    if origin == ENV_ORIGIN {
        let name = key.to_uppercase().replace('.', ENV_SEPARATOR);
        return format!("{ENV_PREFIX}{ENV_SEPARATOR}{name}");
    }
    origin.to_owned()
}
