//! The house's rules of style and architecture, as a test that names what to do instead.
//!
//! It reads the text of the tree and runs nothing of it. Every rule carries snippets that break it and snippets that do
//! not, and is tested on both: a rule that cannot fail is worse than none.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test's helpers fail the test that calls them")]

use std::fs;
use std::path::Path;

/// Past this a file of `src` has a second noun in it. Files of tests only are lists of claims and may be longer.
const FILE_LINES_MAX: usize = 400;

/// The floors of the house: a room may name rooms on lower floors only. Rooms on one floor do not know each other.
const FLOORS: &[(&str, u32)] = &[
    ("domain", 0),
    ("retry", 1),
    ("shutdown", 1),
    ("store", 2),
    ("mail", 2),
    ("client", 2),
    ("evidence", 3),
    ("replay", 3),
    ("config", 4),
    ("telemetry", 5),
    ("worker", 5),
    ("http", 5),
    ("app", 6),
    ("sandbox", 6),
    ("cli", 7),
    ("main", 8),
    ("lib", 8),
];

/// Words that one room alone may say, and where the others turn to.
const OWNED: &[(&[&str], &[&str], &str)] = &[
    (
        &[
            "query!",
            "query_as!",
            "query_scalar!",
            "query_file!",
            "sqlx::query",
            "sqlx::query_as",
            "sqlx::query_scalar",
            "raw_sql",
        ],
        &["src/store", "src/sandbox"],
        "SQL belongs to src/store: call, or write, a function there that is named for its intent",
    ),
    (
        &["lettre", "rustls", "tokio_rustls", "rustls_native_certs"],
        &["src/mail", "src/client", "src/sandbox"],
        "mail and its TLS belong to src/mail: use its types",
    ),
    (
        &["std::env"],
        &["src/config", "src/sandbox"],
        "the environment is read by src/config only: take the value as a setting",
    ),
    (&["reqwest"], &["src/client"], "calling over HTTP belongs to src/client: use client::Client"),
    (&["backoff::"], &["src/retry"], "delays come from src/retry.rs: use retry::full_jitter or retry::Patience"),
];

/// What the rules of src/domain must not lean on.
const IMPURE: &[&str] = &[
    "tokio",
    "sqlx",
    "lettre",
    "axum",
    "rand",
    "SystemTime",
    "Instant",
    "now_utc",
    "now_v7",
    "new_v4",
    "std::env",
    "std::fs",
    "std::net",
];

/// Words of the place where the text was written, which say nothing to its readers.
const FOREIGN: &[&str] =
    &["/work/", "/root/", "worktree", "subagent", "claude", "anthropic", "chatgpt", "language model"];

/// One file of the tree.
struct File {
    /// The path from the root, with `/`.
    path: String,
    /// All of it.
    text: String,
    /// Rust only: the same length, with the insides of comments and literals blanked.
    code: String,
    /// Where in `code` the inline test module begins; its length when there is none, nought for a file of tests.
    tests: usize,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        let rust = Path::new(path).extension().is_some_and(|extension| extension == "rs");
        let code = if rust { code_only(text) } else { String::new() };
        let all_tests = path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs");
        let tests = if all_tests { 0 } else { inline_tests(&code).unwrap_or(code.len()) };
        Self { path: path.to_owned(), text: text.to_owned(), code, tests }
    }

    /// The code that is not tests.
    fn product(&self) -> &str {
        if self.in_any(&["src"]) { &self.code[..self.tests] } else { "" }
    }

    fn in_any(&self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.strip_prefix(place).is_some_and(|rest| rest.starts_with(['/', '.'])))
    }

    /// The room of the house this file is in: `src/store/claim.rs` and `src/store.rs` are in `store`.
    fn room(&self) -> Option<&str> {
        self.path.strip_prefix("src/")?.split(['/', '.']).next()
    }
}

/// A snippet with the path it would have.
type Snippet = (&'static str, &'static str);

struct Rule {
    name: &'static str,
    /// Finds what breaks the rule: where in the text, and what to do instead.
    check: fn(&File) -> Vec<(usize, String)>,
    broken: &'static [Snippet],
    kept: &'static [Snippet],
}

const RULES: &[Rule] = &[
    Rule {
        name: "a file opens with what it owns and must never do",
        check: |file| {
            // The tests of a module are owned by the module.
            let inner = file.path.starts_with("src/") && file.tests == 0;
            let missing = !file.code.is_empty() && !inner && !file.text.starts_with("//!");
            found(
                missing.then_some(0),
                "open the file with two to six lines of `//!`: what it owns, what it must never do",
            )
        },
        broken: &[("src/store/claim.rs", "use std::fmt;\n"), ("tests/it/api.rs", "// An ordinary comment\n")],
        kept: &[
            ("src/store/claim.rs", "//! Claims.\nuse std::fmt;\n"),
            ("src/store/claim/tests.rs", "use super::*;\n"),
            ("Makefile", "all:\n"),
        ],
    },
    Rule {
        name: "a file is short enough to be read at once",
        check: |file| {
            let long = file.in_any(&["src"]) && file.tests > 0 && file.text.lines().count() > FILE_LINES_MAX;
            found(long.then_some(0), "more than 400 lines: find the second noun in it and give that a file of its own")
        },
        broken: &[("src/worker/dispatch.rs", LONG)],
        kept: &[
            ("src/worker/dispatch.rs", "//! Short.\n"),
            ("src/worker/tests.rs", LONG),
            ("tests/it/claims.rs", LONG),
        ],
    },
    Rule {
        name: "nothing unfinished is left behind",
        check: |file| {
            let in_code = ["todo!", "unimplemented!", "dbg!"].map(|word| (word, &file.code));
            let in_text = ["FIXME", "XXX"].map(|word| (word, &file.text));
            in_code
                .iter()
                .chain(in_text.iter().filter(|_| !is_this_file(file)))
                .flat_map(|(word, text)| places(text, word))
                .map(|at| (at, "finish it now, or open an issue and say in the text what does not work".to_owned()))
                .collect()
        },
        broken: &[
            ("src/app.rs", "fn run() { todo!() }"),
            ("src/app.rs", "fn run() { unimplemented!(\"later\") }"),
            ("tests/it/api.rs", "fn run() { dbg!(1); }"),
            ("docs/run.md", "FIXME: wrong"),
            ("src/app.rs", "// XXX why\n"),
        ],
        kept: &[("src/app.rs", "fn run() { let todo = \"todo!()\"; } // a todo! in words")],
    },
    Rule {
        name: "a lint is expected with a reason, not allowed",
        check: |file| {
            let attributes = ["#[allow(", "#![allow("].iter().flat_map(|word| places(&file.code, word));
            attributes
                .map(|at| {
                    (at, "use #[expect(lint, reason = \"…\")], which says when it is not needed any more".to_owned())
                })
                .collect()
        },
        broken: &[("src/app.rs", "#[allow(dead_code)]\nfn f() {}"), ("src/app.rs", "#![allow(dead_code)]")],
        kept: &[("src/app.rs", "#[expect(dead_code, reason = \"…\")]\nfn f() {} // not #[allow(…)]")],
    },
    Rule {
        name: "the text speaks to its readers, wherever they are",
        check: |file| {
            let text = file.text.to_lowercase();
            let words =
                FOREIGN.iter().filter(|_| !is_this_file(file)).flat_map(|word| text.find(word).map(|at| (at, word)));
            words
                .map(|(at, word)| (at, format!("{word:?} means nothing to a reader elsewhere: leave it out")))
                .collect()
        },
        broken: &[
            ("docs/run.md", "see /work/main/x"),
            ("src/app.rs", "//! Written by Claude\n"),
            ("Makefile", "D=/root/x"),
        ],
        kept: &[("docs/run.md", "the network/worker/store"), ("src/app.rs", "//! A room.\n")],
    },
    Rule {
        name: "one room alone owns a technique",
        check: |file| {
            let others = OWNED.iter().filter(|(_, owners, _)| !file.in_any(owners));
            others
                .flat_map(|(words, _, instead)| words.iter().map(move |word| (word, instead)))
                .flat_map(|(word, instead)| {
                    places(file.product(), word).map(|at| (at, (*instead).to_owned())).collect::<Vec<_>>()
                })
                .collect()
        },
        broken: &[
            ("src/worker/batch.rs", "fn f() { sqlx::query!(\"SELECT 1\"); }"),
            ("src/http/api.rs", "fn f() { sqlx::query_as(\"SELECT 1\"); }"),
            ("src/worker/deliver.rs", "use lettre::Message;"),
            ("src/http/mod.rs", "use tokio_rustls::TlsAcceptor;"),
            ("src/app.rs", "fn f() { std::env::var(\"HOME\"); }"),
            ("src/mail/provider.rs", "use backoff::ExponentialBackoff;"),
        ],
        kept: &[
            ("src/store/claim.rs", "fn f() { sqlx::query!(\"SELECT 1\"); }"),
            ("src/mail/compose.rs", "use lettre::Message;"),
            ("src/config/mod.rs", "use std::env;"),
            ("src/retry.rs", "use backoff::ExponentialBackoff;"),
            (
                "src/app.rs",
                "//! As std::env does.\nfn f(backoff: u8) { env!(\"CARGO\"); }\n#[cfg(test)]\nmod tests { use std::env; }",
            ),
        ],
    },
    Rule {
        name: "the rules of the domain are pure",
        check: |file| {
            let words = IMPURE.iter().filter(|_| file.in_any(&["src/domain"]));
            words
                .flat_map(|word| places(file.product(), word))
                .map(|at| (at, "src/domain knows no clock, chance, network, disk or framework: take what it yields as an argument".to_owned()))
                .collect()
        },
        broken: &[
            ("src/domain/policy.rs", "use tokio::time;"),
            ("src/domain/policy.rs", "fn f() { std::time::Instant::now(); }"),
            ("src/domain/ids.rs", "fn f() { Uuid::now_v7(); }"),
            ("src/domain/policy.rs", "use rand::Rng;"),
        ],
        kept: &[
            ("src/domain/policy.rs", "//! No tokio.\nfn f(operand: u8) {}"),
            ("src/worker/mod.rs", "use tokio::time;"),
        ],
    },
    Rule {
        name: "lower floors do not know higher ones, nor rooms each other",
        check: |file| {
            let Some(room) = file.room() else { return Vec::new() };
            let height = |room: &str| FLOORS.iter().find(|(name, _)| *name == room).map(|(_, floor)| *floor);
            let Some(floor) = height(room) else {
                return found(Some(0), &format!("`{room}` has no floor: give it one in FLOORS in tests/tidy.rs"));
            };
            named_rooms(file.product())
                .into_iter()
                .filter(|(_, other)| other != room)
                // What is not a room is an item of lib.rs.
                .filter(|(_, other)| height(other).is_some_and(|other| other >= floor))
                .map(|(at, other)| {
                    (
                        at,
                        format!(
                            "`{room}` must not know `{other}`: move what they share down, or pass it in from above"
                        ),
                    )
                })
                .collect()
        },
        broken: &[
            ("src/domain/policy.rs", "use crate::store::claim;"),
            ("src/store/claim.rs", "use crate::mail::Outcome;"),
            ("src/worker/deliver.rs", "use crate::{domain::ids::Fence, http::{api, ops}};"),
            ("src/mail/smtp.rs", "fn f() { crate::app::run() }"),
            ("src/attic.rs", "//! No floor."),
        ],
        kept: &[
            ("src/worker/deliver.rs", "use crate::{domain::{ids, app}, store::claim};\nuse crate::retry::Patience;"),
            ("src/cli/run.rs", "use crate::app;"),
            ("src/store/claim.rs", "use crate::store::pool;\n#[cfg(test)]\nmod tests { use crate::sandbox::cluster; }"),
        ],
    },
    Rule {
        name: "tests wait on conditions, never on a clock",
        check: |file| {
            // The polling helper is the one place; the delays of retry.rs are themselves about the clock.
            let excepted = ["tests/it/harness/wait.rs", "src/retry.rs"].contains(&file.path.as_str());
            let tests = if excepted { "" } else { &file.code[file.tests..] };
            let instead = "wait with harness::eventually, on an event or on durable state; if it plays somebody slow, \
                           say on the line above that it is slow on purpose";
            ["sleep", "sleep_until"]
                .iter()
                .flat_map(|word| places(tests, word))
                .map(|at| file.tests + at)
                .filter(|&at| !file.text[..at].lines().rev().take(2).any(|line| line.contains("slow on purpose")))
                .map(|at| (at, instead.to_owned()))
                .collect()
        },
        broken: &[
            ("tests/it/api.rs", "fn f() { std::thread::sleep(LONG); }"),
            ("tests/it/api.rs", "use tokio::time::sleep;"),
            ("src/app.rs", "#[cfg(test)]\nmod tests { async fn f() { tokio::time::sleep(LONG).await } }"),
            ("src/mail/session/tests.rs", "async fn f() { tokio::time::sleep(LONG).await }"),
        ],
        kept: &[
            ("tests/it/harness/wait.rs", "fn f() { tokio::time::sleep(LOOK); }"),
            ("tests/it/api.rs", "fn f() { run(\"sleep 5\"); } // never sleep"),
            ("src/app.rs", "fn f() { tokio::time::sleep(LOOK); }"),
            ("src/mail/session/tests.rs", "// The peer is slow on purpose.\n    tokio::time::sleep(TRICKLE).await;"),
        ],
    },
];

/// More lines than a file of `src` may have.
const LONG: &str = {
    const LINES: [u8; FILE_LINES_MAX + 1] = [b'\n'; FILE_LINES_MAX + 1];
    match std::str::from_utf8(&LINES) {
        Ok(text) => text,
        Err(_) => "",
    }
};

fn found(at: Option<usize>, instead: &str) -> Vec<(usize, String)> {
    at.map(|at| (at, instead.to_owned())).into_iter().collect()
}

/// This file has to spell out the words it forbids.
fn is_this_file(file: &File) -> bool {
    file.path == "tests/tidy.rs"
}

/// Where `word` stands as a word of its own.
fn places<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let joins = |next: Option<char>| next.is_some_and(|next| next.is_alphanumeric() || next == '_');
    let (opens, closes) = (joins(word.chars().next()), joins(word.chars().next_back()));
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        !(opens && joins(text[..at].chars().next_back()) || closes && joins(text[at + word.len()..].chars().next()))
    })
}

/// The rooms that code names as `crate::room` or inside `crate::{…}`, and where.
fn named_rooms(code: &str) -> Vec<(usize, String)> {
    let word =
        |text: &str| text.trim_start().split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_owned();
    let mut rooms = Vec::new();
    for at in places(code, "crate::") {
        let rest = &code[at + "crate::".len()..];
        let Some(group) = rest.strip_prefix('{') else {
            rooms.push((at, word(rest)));
            continue;
        };
        let mut depth = 1_u32;
        rooms.push((at, word(group)));
        for (offset, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => rooms.push((at, word(&group[offset + 1..]))),
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    rooms
}

/// Where an inline `#[cfg(test)] mod … {` begins.
fn inline_tests(code: &str) -> Option<usize> {
    code.match_indices("#[cfg(test)]").map(|(at, attribute)| (at, code[at + attribute.len()..].trim_start())).find_map(
        |(at, item)| {
            let head = item.strip_prefix("mod ")?;
            head.find(['{', ';']).filter(|&end| head[end..].starts_with('{')).map(|_| at)
        },
    )
}

/// Rust text with the insides of comments, strings and characters turned into spaces, byte for byte.
fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let before = if at == 0 { b' ' } else { bytes[at - 1] };
        let length = if rest.starts_with(b"//") {
            rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            block_comment(rest)
        } else if rest[0] == b'r' && !before.is_ascii_alphanumeric() && before != b'_' && raw_hashes(rest).is_some() {
            let hashes = raw_hashes(rest).unwrap();
            let end = [b"\"", "#".repeat(hashes).as_bytes()].concat();
            let start = hashes + 2;
            rest[start..]
                .windows(end.len())
                .position(|window| window == end)
                .map_or(rest.len(), |inside| start + inside + end.len())
        } else if rest[0] == b'"' {
            quoted(rest, b'"')
        } else if rest[0] == b'\'' && (rest.get(1) == Some(&b'\\') || text[at + 1..].chars().nth(1) == Some('\'')) {
            quoted(rest, b'\'')
        } else {
            at += 1;
            continue;
        };
        code[at..at + length].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
        at += length;
    }
    String::from_utf8(code).unwrap()
}

fn quoted(bytes: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn block_comment(bytes: &[u8]) -> usize {
    let (mut at, mut depth) = (2, 1_u32);
    while at < bytes.len() && depth > 0 {
        let (step, change) = match bytes.get(at..at + 2) {
            Some(b"/*") => (2, 1),
            Some(b"*/") => (2, -1),
            _ => (1, 0),
        };
        at += step;
        depth = depth.saturating_add_signed(change);
    }
    at
}

/// The number of hashes when a raw string begins here.
fn raw_hashes(bytes: &[u8]) -> Option<usize> {
    let hashes = bytes[1..].iter().take_while(|&&b| b == b'#').count();
    (bytes.get(1 + hashes) == Some(&b'"')).then_some(hashes)
}

/// All files of the project that hold text. What is generated or fetched is not ours.
fn tree() -> Vec<File> {
    fn walk(root: &Path, directory: &Path, files: &mut Vec<File>) {
        for entry in fs::read_dir(directory).expect("a readable directory") {
            let path = entry.expect("a readable entry").path();
            let name = path.strip_prefix(root).expect("a path below the root").to_string_lossy().replace('\\', "/");
            if ["target", ".git", ".sqlx", "Cargo.lock"].contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                walk(root, &path, files);
            } else if let Ok(text) = fs::read_to_string(&path) {
                files.push(File::new(&name, &text));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    walk(root, root, &mut files);
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// What a file does against a rule, once a line.
fn complaints(rule: &Rule, file: &File) -> Vec<String> {
    let line = |at: usize| file.text.as_bytes()[..at].iter().filter(|&&b| b == b'\n').count() + 1;
    let mut all: Vec<_> = (rule.check)(file).into_iter().map(|(at, instead)| (line(at), instead)).collect();
    all.sort();
    all.dedup();
    all.into_iter().map(|(line, instead)| format!("{}:{line}: {}: {instead}", file.path, rule.name)).collect()
}

#[test]
fn the_tree_keeps_the_rules_of_the_house() {
    let files = tree();
    assert!(files.iter().any(|file| file.path == "src/lib.rs"), "the tree was not read");
    let all: Vec<_> = files.iter().flat_map(|file| RULES.iter().flat_map(move |rule| complaints(rule, file))).collect();
    assert!(all.is_empty(), "\n{}\n", all.join("\n"));
}

#[test]
fn every_rule_finds_what_breaks_it_and_leaves_the_rest_alone() {
    for rule in RULES {
        assert!(!rule.broken.is_empty() && !rule.kept.is_empty(), "no snippets for: {}", rule.name);
        for (path, text) in rule.broken {
            assert_eq!(
                complaints(rule, &File::new(path, text)).len(),
                1,
                "{}: not found once in {path}: {text}",
                rule.name
            );
        }
        for (path, text) in rule.kept {
            assert_eq!(complaints(rule, &File::new(path, text)), [""; 0], "{}: found in {path}: {text}", rule.name);
        }
    }
}

#[test]
fn words_in_comments_and_literals_are_not_code() {
    let text = "a /* b /* c */ d */ e // f\n\"g \\\" h\" i r#\"j \" k\"# l 'm' '\\'' n<'o> p 'é'";
    let code = code_only(text);
    assert_eq!(code.len(), text.len());
    let words: Vec<_> = code.split_whitespace().collect();
    assert_eq!(words, ["a", "e", "i", "l", "n<'o>", "p"]);
}
