//! Finding the programs of PostgreSQL and Postfix on this machine.
//!
//! It only looks: it starts nothing and installs nothing, and says what to install when there is nothing to be found.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// The directory with PostgreSQL's server programs: `$OUTBOXD_PG_BIN`, else PATH, else where packages put them.
pub(super) fn postgresql() -> Result<PathBuf> {
    let complete = |dir: &Path| ["initdb", "pg_ctl", "postgres"].iter().all(|name| dir.join(name).is_file());
    if let Some(named) = std::env::var_os("OUTBOXD_PG_BIN").map(PathBuf::from) {
        if !complete(&named) {
            bail!("OUTBOXD_PG_BIN={} does not hold initdb, pg_ctl and postgres", named.display());
        }
        return Ok(named);
    }
    // On PATH there may be a link to one of the programs only.
    let on_path = find("postgres", &[])
        .and_then(|link| fs::canonicalize(link).ok())
        .and_then(|file| file.parent().map(Path::to_path_buf));
    on_path.into_iter().chain(package_dirs()).find(|dir| complete(dir)).context(
        "PostgreSQL's server programs (initdb, pg_ctl, postgres) are not installed: run `make setup`, or `apt-get install \
         postgresql` (Debian, Ubuntu), `dnf install postgresql-server` (Fedora), `brew install postgresql` (macOS); \
         or set OUTBOXD_PG_BIN to the directory they are in",
    )
}

/// Where packages put the server programs, the newest version first.
fn package_dirs() -> Vec<PathBuf> {
    let versioned = [
        ("/usr/lib/postgresql", "", "bin"),
        ("/usr", "pgsql-", "bin"),
        ("/opt/homebrew/opt", "postgresql", "bin"),
        ("/usr/local/opt", "postgresql", "bin"),
    ];
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for (parent, prefix, bin) in versioned {
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(version) = name.strip_prefix(prefix) {
                found.push((version.trim_start_matches('@').parse().unwrap_or(0), entry.path().join(bin)));
            }
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, dir)| dir).chain([PathBuf::from("/usr/local/pgsql/bin")]).collect()
}

/// The program called `name` in the first of `dirs`, or else on PATH.
pub(super) fn find(name: &str, dirs: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    dirs.iter()
        .map(PathBuf::from)
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installed_server_programs_are_found() {
        let dir = postgresql().expect("PostgreSQL's server programs");
        assert!(dir.join("initdb").is_file());
    }
}
