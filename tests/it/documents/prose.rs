//! README, changelog, SECURITY.md and guide: short, linked to what exists, and true where a program can find out.

use crate::support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::IntoConnectionInfo;
use redlock_sync::{Error, LockState, Options, Redlock};
use support::{Server, TTL, eventually, ms, options};

/// Where docs.rs shows a page of the documentation, and a file of the package.
const PAGES: &str = "https://docs.rs/redlock-sync/latest/redlock_sync/";
const SOURCE: &str = "https://docs.rs/crate/redlock-sync/latest/source/";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    let text = fs::read_to_string(root().join(path));
    text.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names of the guide's chapters.
fn chapters() -> Vec<String> {
    let mut chapters: Vec<String> = fs::read_dir(root().join("src/guide"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    chapters.sort();
    assert!(chapters.len() > 9, "{chapters:?}");
    chapters
}

/// README, changelog, SECURITY.md and guide.
fn documents() -> Vec<String> {
    let chapters = chapters()
        .into_iter()
        .map(|name| format!("src/guide/{name}.md"));
    ["README.md", "CHANGELOG.md", "SECURITY.md", "src/guide.rs"]
        .map(str::to_owned)
        .into_iter()
        .chain(chapters)
        .collect()
}

/// The lines outside of blocks of code. A source file's documentation counts, too.
fn prose(text: &str) -> Vec<&str> {
    let mut code = false;
    let lines = text.lines().map(|line| line.trim_start_matches("//! "));
    let lines = lines.filter(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    lines.collect()
}

/// What follows `](` up to `)`.
fn links(text: &str) -> Vec<String> {
    let text = prose(text).join("\n");
    let ends = text.split("](").skip(1);
    ends.map(|rest| rest.split(')').next().unwrap().replace('\n', ""))
        .collect()
}

/// As rustdoc and others make anchors of headings.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for line in prose(text) {
        let Some((level, title)) = line.split_once(' ') else {
            continue;
        };
        if level.is_empty() || level.bytes().any(|byte| byte != b'#') {
            continue;
        }
        let anchor: String = title
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let again = anchors
            .iter()
            .filter(|other| {
                other.trim_end_matches(|c: char| c == '-' || c.is_ascii_digit()) == anchor
            })
            .count();
        anchors.push(match again {
            0 => anchor,
            _ => format!("{anchor}-{again}"),
        });
    }
    anchors
}

/// The file with what stands on a page of this crate's documentation, or why there is no such page.
fn behind(page: &str) -> Result<String, String> {
    if ["index.html", "guide/index.html"].contains(&page) {
        return Ok(page
            .replace("guide/index.html", "src/guide.rs")
            .replace("index.html", "src/lib.rs"));
    }
    let chapter = page
        .strip_prefix("guide/")
        .and_then(|page| page.strip_suffix("/index.html"));
    match chapter {
        Some(chapter) if chapters().iter().any(|other| other == chapter) => {
            Ok(format!("src/guide/{chapter}.md"))
        }
        Some(chapter) => Err(format!("the guide has no chapter {chapter}")),
        None => Err("link to the guide, or to the crate's front page".into()),
    }
}

/// What is wrong with a link.
fn check(document: &str, link: &str) -> Result<(), String> {
    let (target, anchor) = match link.split_once('#') {
        Some((target, anchor)) => (target, Some(anchor)),
        None => (link, None),
    };
    let file = if target.is_empty() {
        document.to_owned()
    } else if let Some(page) = target.strip_prefix(PAGES) {
        behind(page)?
    } else if let Some(path) = target.strip_prefix(SOURCE) {
        let path: PathBuf = root().join(path);
        return path.exists().then_some(()).ok_or("no such file".into());
    } else if let Some(chapter) = target.strip_prefix("crate::guide::") {
        behind(&format!("guide/{chapter}/index.html"))?
    } else if target == "crate" {
        "src/lib.rs".into()
    } else if target.starts_with("crate::") && document.starts_with("src/") {
        // rustdoc finds out.
        return Ok(());
    } else if target.starts_with("https://") && !target.contains("redlock-sync") {
        return Ok(());
    } else {
        return Err("neither a page of this crate nor one of others".into());
    };
    match anchor {
        Some(anchor) if !anchors(&read(&file)).iter().any(|other| other == anchor) => {
            Err(format!("{file} has no heading of that name"))
        }
        _ => Ok(()),
    }
}

#[test]
fn the_readme_has_at_most_200_lines() {
    let lines = read("README.md").lines().count();
    assert!((100..=200).contains(&lines), "{lines}");
}

#[test]
fn the_readme_counts_the_dependencies() {
    let tree = |depth: &[&str]| {
        let mut cargo = support::cargo();
        cargo.args(["tree", "--offline", "--locked", "-e", "normal"]);
        cargo.args(["--prefix", "none", "--no-dedupe"]).args(depth);
        let output = cargo.current_dir(root()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: BTreeSet<&str> = text.lines().skip(1).collect();
        lines.len()
    };
    let (direct, all) = (tree(&["--depth", "1"]), tree(&[]));
    assert_eq!(direct, 3);
    let readme = read("README.md");
    assert!(readme.contains("Three direct dependencies (`redis`, `getrandom`, `log`), "));
    // The checkout's lock file has smaller tables for host names.
    let said = format!("({all} with `cargo update idna_adapter --precise 1.1.0`)");
    assert!(readme.contains(&said), "{said}");
}

#[test]
fn every_link_has_a_target() {
    let mut count = 0;
    let mut wrong = Vec::new();
    for document in documents() {
        for link in links(&read(&document)) {
            count += 1;
            if let Err(why) = check(&document, &link) {
                wrong.push(format!("{document}: {link}: {why}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 100, "{count}");
}

#[test]
fn the_documents_have_none_of_the_words_that_are_to_be_avoided() {
    // Callers, processes and holders are named; limits are called limits.
    let words = [
        "somebody",
        "nobody",
        "anybody",
        "everybody",
        "whoever",
        "so many",
        "so long",
        "so much",
        "is said",
        "is told",
        "that one",
    ];
    let mut found = Vec::new();
    for document in documents() {
        let text = read(&document).to_lowercase();
        let text = text.replace(|c: char| !c.is_alphanumeric(), " ");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = format!(" {text} ");
        for word in words {
            if text.contains(&format!(" {word} ")) {
                found.push(format!("{document}: {word}"));
            }
        }
        for line in prose(&read(&document)) {
            let line = line.trim_start_matches(['-', ' ', '|']);
            if line.starts_with("Of ") || line.starts_with("The same, ") {
                found.push(format!("{document}: {line}"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A line without the targets of its links, which cannot be broken.
fn without_targets(line: &str) -> String {
    let mut parts = line.split("](");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        shown += "]";
        shown += part.split_once(')').map_or("", |(_, rest)| rest);
    }
    shown
}

#[test]
fn no_line_of_prose_is_longer_than_160_characters() {
    let mut long = Vec::new();
    for document in documents() {
        for line in prose(&read(&document)) {
            // A row of a table is one line.
            if !line.starts_with('|') && without_targets(line).chars().count() > 160 {
                long.push(format!("{document}: {line}"));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
    let example = "see [Operations](https://example.com/) for (more)";
    assert_eq!(without_targets(example), "see [Operations] for (more)");
}

/// The chapter begins with links to all its sections of the first level.
#[test]
fn operations_has_a_table_of_contents() {
    let text = read("src/guide/operations.md");
    let (contents, _) = text.split_once("\n# ").unwrap();
    let links = links(contents);
    for title in prose(&text)
        .iter()
        .filter_map(|line| line.strip_prefix("# "))
    {
        let anchor = &anchors(&format!("# {title}"))[0];
        assert!(links.contains(&format!("#{anchor}")), "{title}");
    }
}

#[test]
fn links_to_nothing_are_found() {
    let wrong = [
        "#nothing",
        "LICENSE-MIT",
        "guide/faq.md",
        "http://example.com",
        &format!("{PAGES}guide/nothing/index.html"),
        &format!("{PAGES}guide/operations/index.html#nothing"),
        &format!("{PAGES}guide/operations/"),
        &format!("{SOURCE}NOTHING.md"),
        "crate::guide::nothing",
        "crate::guide::operations#nothing",
        "crate#nothing",
        "https://example.com/redlock-sync",
        "crate::Redlock",
    ];
    for link in wrong {
        assert!(check("README.md", link).is_err(), "{link}");
    }
}

#[test]
fn the_guide_lists_all_its_chapters() {
    let guide = read("src/guide.rs");
    for chapter in chapters() {
        assert!(
            guide.contains(&format!("//! | [`{chapter}`] |")),
            "{chapter}"
        );
        let module =
            format!("#[doc = include_str!(\"guide/{chapter}.md\")]\npub mod {chapter} {{}}");
        assert!(guide.contains(&module), "{chapter}");
    }
}

/// The table calls nothing missing that this command has.
#[test]
fn users_of_other_commands_find_each_kind_of_lock() {
    let text = read("src/guide/coming_from.md");
    for (other, ours) in [("`-n=3`", "`--slots 3`"), ("`-s` (shared)", "`--shared`")] {
        let mut rows = text
            .lines()
            .filter(|line| line.starts_with("| ") && line.contains(other));
        assert!(rows.any(|row| row.contains(ours)), "{other}");
    }
}

#[test]
fn the_tables_name_every_option_and_every_error() {
    let (options, table) = (
        read("src/settings/options.rs"),
        read("src/guide/operations.md"),
    );
    let setters = options.split("pub fn ").filter_map(|rest| {
        let (name, rest) = rest.split_once('(')?;
        let name = name.split('<').next()?;
        rest.starts_with("mut self").then_some(name)
    });
    let setters: Vec<&str> = setters.collect();
    assert!(
        setters.contains(&"wait") && setters.len() > 6,
        "{setters:?}"
    );
    for name in setters {
        assert!(table.contains(&format!("\n| `{name}(")), "{name}");
    }
    let (errors, table) = (read("src/errors/error.rs"), read("README.md"));
    let variants = errors.split("pub enum Error {").nth(1).unwrap();
    let variants = variants.split("\n}").next().unwrap().lines();
    let variants: Vec<&str> = variants
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))
        .map(|line| line.split(['(', ',']).next().unwrap())
        .collect();
    assert!(
        variants.contains(&"Busy") && variants.len() > 7,
        "{variants:?}"
    );
    for name in variants {
        assert!(table.contains(&format!("\n| `{name}` |")), "{name}");
    }
}

/// The blocks of code of this kind.
fn blocks(kind: &str, text: &str) -> Vec<String> {
    let start = format!("\n```{kind}\n");
    let blocks = text.split(&start).skip(1);
    blocks
        .map(|rest| rest.split("```\n").next().unwrap().to_owned())
        .collect()
}

#[test]
fn the_crontab_and_the_unit_of_the_guide_are_those_of_the_package() {
    let (guide, manifest) = (read("src/guide/shell.md"), read("Cargo.toml"));
    let shown = [blocks("ini", &guide), blocks("crontab", &guide)].concat();
    for file in [
        "import.service",
        "import.timer",
        "stuck.service",
        "stuck.timer",
        "crontab",
    ] {
        let path = format!("examples/system/{file}");
        assert!(shown.contains(&read(&path)), "{file}");
        let asset = format!("[\"{path}\", \"usr/share/doc/redlock/examples/\", \"644\"],");
        assert!(manifest.contains(&asset), "{asset}");
    }
    let alerts = "[\"examples/system/alerts.yml\", \"usr/share/doc/redlock/examples/\", \"644\"],";
    assert!(manifest.contains(alerts));
    // Passwords stand in it.
    assert!(manifest.contains("[\"examples/system/nodes\", \"etc/redlock/\", \"640\"],"));
    for line in blocks("text", &guide)[0].lines() {
        let commented = format!("\n# {line}\n");
        assert!(read("examples/system/nodes").contains(&commented), "{line}");
    }
}

#[test]
fn a_command_is_named_without_a_directory_and_found_where_it_is_installed() {
    // Where `cargo install` puts it here, and where the package does. systemd looks into both, too.
    let directories = ["/usr/local/bin", "/usr/bin"];
    let (readme, guide, manifest) = (
        read("README.md"),
        read("src/guide/shell.md"),
        read("Cargo.toml"),
    );
    assert!(readme.contains("\ncargo install redlock-sync --features cli --root /usr/local "));
    assert!(guide.contains("`cargo install redlock-sync --features cli --root /usr/local`"));
    assert!(manifest.contains("[\"target/release/redlock\", \"usr/bin/\", \"755\"]"));
    let mut crontabs = 0;
    for document in documents() {
        let text = read(&document);
        for directory in directories {
            assert!(
                !text.contains(&format!("{directory}/redlock")),
                "{document}"
            );
        }
        for crontab in blocks("crontab", &text) {
            let path = crontab.lines().find_map(|line| line.strip_prefix("PATH="));
            let path: Vec<&str> = path.unwrap().split(':').collect();
            assert!(directories.iter().all(|directory| path.contains(directory)));
            crontabs += 1;
        }
    }
    assert_eq!(crontabs, 2);
}

/// The files with code for people to copy: documents, comments for rustdoc, examples, the header and the manual page.
fn code_to_copy() -> Vec<String> {
    let mut files = documents();
    for folder in [
        "src",
        "src/values",
        "src/errors",
        "src/settings",
        "src/net/driver",
        "src/lock",
        "src/ops",
        "src/testing",
        "src/bin/redlock",
    ] {
        let paths = fs::read_dir(root().join(folder)).unwrap();
        let names = paths.map(|file| file.unwrap().file_name().into_string().unwrap());
        let shown =
            names.filter(|name| [".rs", ".h", ".roff"].iter().any(|end| name.ends_with(end)));
        files.extend(shown.map(|name| format!("{folder}/{name}")));
    }
    for name in [
        "batch_job.rs",
        "fencing.rs",
        "long_job.rs",
        "quickstart.rs",
        "single_instance.rs",
        "throttle.rs",
    ] {
        files.push(format!("examples/{name}"));
    }
    for name in [
        "capi/batch_job.c",
        "python/batch_job.py",
        "python/lock_metrics.py",
        "python/src/redlock/__init__.py",
        "python/src/redlock/testing.py",
    ] {
        files.push(format!("examples/{name}"));
    }
    files
}

/// What is copied should fit a user that may use only some keys.
#[test]
fn every_lock_that_is_shown_has_a_name_with_a_prefix() {
    let calls = [
        "acquire(",
        "acquire_within(",
        "acquire_while(",
        "with_lock(",
        "with_kept_lock(",
        "semaphore(",
        "read_lock(",
        "write_lock(",
        "several([",
        "inspect(",
        "check(",
        "locks.lock(",
        "try_lock(",
        "permit(",
        "hold(",
    ];
    let commands = [
        "redlock run ",
        "redlock throttle ",
        "redlock inspect ",
        "redlock release ",
    ];
    let (mut found, mut without) = (0, Vec::new());
    for file in code_to_copy() {
        let text = read(&file);
        let in_comments = file.starts_with("src/") && file.ends_with(".rs");
        for line in text.lines().map(str::trim_start) {
            let comment = ["/// ", "//! "]
                .iter()
                .find_map(|start| line.strip_prefix(start));
            // Lines that rustdoc hides, and the page about prefixes.
            let line = if in_comments {
                comment.unwrap_or("")
            } else {
                line
            };
            if line.starts_with("# ") || line.contains("team:") {
                continue;
            }
            let names = calls.iter().flat_map(|call| line.split(call).skip(1));
            let names = names.filter_map(|rest| rest.strip_prefix('"')?.split('"').next());
            let names: Vec<&str> = names.collect();
            let is_command = commands.iter().any(|command| line.contains(command));
            let is_prose = line.contains('`') || line.starts_with(".B ") || line.contains("sudo ");
            let is_command = is_command && !is_prose;
            found += names.len() + usize::from(is_command);
            if !names.iter().all(|name| name.starts_with("shop:"))
                || is_command && !line.contains(" shop:")
            {
                without.push(format!("{file}: {line}"));
            }
        }
    }
    assert!(without.is_empty(), "{}", without.join("\n"));
    assert!(found > 60, "{found}");
}

/// The rows of the first table after this text, without their heads.
fn rows<'a>(text: &'a str, after: &str) -> Vec<Vec<&'a str>> {
    let table = text.split(after).nth(1).unwrap().trim_start();
    let lines = table.lines().take_while(|line| line.starts_with('|'));
    let cells = |line: &'a str| line.trim_matches('|').split('|').map(str::trim).collect();
    lines.skip(2).map(cells).collect()
}

#[test]
fn the_guide_counts_what_the_lock_test_found() {
    // It is no part of the package.
    let Ok(full) = fs::read_to_string(root().join("tests/peers/README.md")) else {
        return;
    };
    let guide = read("src/guide/how_we_know.md");
    let found = rows(&full, "In which scenarios was what found:");
    let counted = rows(&guide, "library with its default options:");
    assert!(found.len() == 17 && counted.len() == 17, "{counted:?}");
    for (found, counted) in found.iter().zip(&counted) {
        let count = |cell: &&str| match *cell {
            "–" => "–".to_owned(),
            scenarios => scenarios.split(',').count().to_string(),
        };
        let expected: Vec<String> = found[2..9].iter().map(count).collect();
        assert_eq!(counted[2..9], expected, "{}", found[0]);
        assert_eq!(
            (counted[1], counted[9]),
            (found[1], found[9]),
            "{}",
            found[0]
        );
    }
}

#[test]
fn the_guide_counts_the_scenarios_and_contenders_of_the_lock_test() {
    let source = |file| fs::read_to_string(root().join("tests/peers/src").join(file));
    // They are no part of the package.
    let (Ok(schedule), Ok(contenders)) = (source("schedule.rs"), source("contenders.rs")) else {
        return;
    };
    let scenarios = schedule.split("ALL: [Scenario; ").nth(1).unwrap();
    let scenarios = scenarios.split(']').next().unwrap();
    let rows = contenders.split("row(\"").skip(1);
    let contenders = rows.filter(|row| !row.starts_with("wrong-")).count();
    let expected = format!("plays {scenarios} scenarios to {contenders} *contenders*");
    let guide = read("src/guide/how_we_know.md");
    assert!(guide.contains(&expected), "the guide has not: {expected}");
}

#[test]
fn the_guide_counts_the_mutants() {
    let source = read("src/protocol/mutants.rs");
    let table = source.split("\nmutants! {").nth(1).unwrap();
    let table = table.split("\n}").next().unwrap();
    let mutants = table.lines().filter(|line| line.contains(" = \""));
    let of_units = mutants
        .clone()
        .filter(|line| line.ends_with(" => UnitTest,"));
    let (all, of_units) = (mutants.count(), of_units.count());
    let guide = read("src/guide/how_we_know.md");
    for said in [
        format!(
            "There are {all}. The same command finds {} of them",
            all - of_units
        ),
        format!("{of_units} mutants are found by unit tests"),
    ] {
        assert!(guide.contains(&said), "{said}");
    }
}

#[test]
fn each_fault_that_was_found_has_a_test_or_a_mutant() {
    let page = read("src/guide/faults_found.md");
    let mutants = read("src/protocol/mutants.rs");
    let mended = page.split("# Open").next().unwrap();
    let rows = mended.lines().filter(|line| line.starts_with("| "));
    let rows = rows.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect());
    let rows: Vec<Vec<&str>> = rows.collect();
    let rows: Vec<_> = rows
        .iter()
        .filter(|row| !["---", "fault"].contains(&row[0]))
        .collect();
    assert!(rows.len() > 60, "{}", rows.len());
    for row in rows {
        assert_eq!(row.len(), 5, "{row:?}");
        let names: Vec<&str> = row[4].split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{row:?}");
        for name in names {
            let function = format!("fn {name}(");
            let folders = ["tests", "src"].map(|folder| root().join(folder));
            let is_test = || {
                folders
                    .iter()
                    .any(|folder| occurrences(folder, &function) > 0)
            };
            let is_there = mutants.contains(&format!("    {name}: R"))
                || name.contains('/')
                    && (root().join(name).exists() || root().join(format!("{name}.rs")).exists())
                || is_test();
            assert!(
                is_there,
                "{name} is neither a test nor a mutant: {}",
                row[0]
            );
        }
    }
}

/// How often this stands in the Rust files of a folder.
fn occurrences(folder: &Path, what: &str) -> usize {
    let entries = fs::read_dir(folder).unwrap();
    let count = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        match path.extension() {
            _ if path.is_dir() => occurrences(&path, what),
            Some(ending) if ending == "rs" => {
                fs::read_to_string(path).unwrap().matches(what).count()
            }
            _ => 0,
        }
    };
    entries.map(count).sum()
}

#[test]
fn the_guide_counts_the_tests() {
    let tests = |folder: &str| occurrences(&root().join(folder), "#[test]\n");
    let command = tests("src/bin");
    let counted = [
        tests("tests/it"),
        tests("tests/cli") + command,
        tests("src") - command,
    ];
    let guide = read("src/guide/how_we_know.md");
    let line = guide.lines();
    let mut line = line.filter(|line| line.contains("tests of the library and the C interface"));
    let line = line.next().unwrap();
    let said = line.split([' ', ',']).filter_map(|word| word.parse().ok());
    let said: Vec<usize> = said.collect();
    assert_eq!(said.len(), 3, "{line}");
    for (said, counted) in said.iter().zip(counted) {
        // It need not change with each test.
        assert!(
            *said <= counted && counted < said + 100,
            "{said}: {counted}"
        );
    }
}

#[test]
fn the_guide_counts_the_worlds_of_the_model_and_the_mutated_scripts() {
    let guide = read("src/guide/how_we_know.md");
    let worlds = occurrences(&root().join("tests/model"), "row(\"");
    let number = |before: &str| -> usize {
        let text = guide.split(before).next().unwrap();
        text.split_whitespace()
            .next_back()
            .unwrap()
            .parse()
            .unwrap()
    };
    let said = number(" worlds, ") + number(" more would break");
    assert_eq!(said, worlds);
    let faults = read("src/proof/differential/faults.rs");
    let table = faults.split("const CHANGES").nth(1).unwrap();
    let table = table.split("\n];").next().unwrap();
    let said = format!("{} changes, each", table.matches("\n    (").count());
    assert!(guide.contains(&said), "{said}");
}

/// The names of the files and folders here, without their endings.
fn entries(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        path.file_stem().unwrap().to_str().unwrap().to_owned()
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn each_room_lists_its_files() {
    let mut rooms = 0;
    let mut folders = vec![root().join("src")];
    while let Some(folder) = folders.pop() {
        let entries: Vec<fs::DirEntry> = fs::read_dir(&folder).unwrap().flatten().collect();
        folders.extend(
            entries
                .iter()
                .map(fs::DirEntry::path)
                .filter(|path| path.is_dir()),
        );
        let Ok(text) = fs::read_to_string(folder.join("mod.rs")) else {
            continue;
        };
        rooms += 1;
        let head: String = text.lines().filter(|line| line.starts_with("//")).collect();
        for path in entries.iter().map(fs::DirEntry::path) {
            let is_module =
                path.join("mod.rs").exists() || path.extension().is_some_and(|end| end == "rs");
            let name = path.file_stem().unwrap().to_str().unwrap();
            let listed = name == "mod" || head.contains(&format!("`{name}`"));
            assert!(
                listed || !is_module,
                "{} is not in the list of its mod.rs",
                path.display()
            );
        }
    }
    assert!(rooms > 15, "{rooms}");
}

#[test]
fn the_guide_lists_each_file_of_the_library_and_the_command() {
    let guide = read("src/guide/contributing.md");
    let table = |from: &str, to: &str| -> String {
        let (_, rest) = guide.split_once(from).unwrap();
        rest.split_once(to).unwrap().0.to_owned()
    };
    let library = table("The library, in `src`.", "The command, in");
    let command = table("The command, in", "Beside these:");
    let mut missing = Vec::new();
    for (table, folder, others) in [
        (&library, "src", &["lib", "bin", "redlock"][..]),
        (
            &command,
            "src/bin/redlock",
            &["main", "inspect", "list", "doctor", "examples", "notes"][..],
        ),
    ] {
        let names = entries(folder).into_iter();
        let names = names.filter(|name| !others.contains(&name.as_str()));
        missing.extend(names.filter(|name| !table.contains(&format!("`{name}`"))));
    }
    assert!(missing.is_empty(), "{missing:?}");
    // And what is named is there.
    let tested = library
        .lines()
        .filter_map(|line| line.trim_matches('|').rsplit('|').next());
    let words: Vec<String> = tested
        .flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned))
        .collect();
    assert!(words.len() > 30, "{words:?}");
    for word in words {
        let places = [
            format!("tests/it/{word}.rs"),
            format!("tests/it/{word}"),
            format!("src/{word}"),
            word.clone(),
        ];
        let is_there = places.iter().any(|place| root().join(place).exists());
        assert!(is_there || word.starts_with("REDLOCK_"), "{word}");
    }
}

/// The README's line for `redis-cli`, as the server gets it.
fn rights() -> Vec<String> {
    let readme = read("README.md");
    let line = readme
        .lines()
        .find_map(|line| line.strip_prefix("redis-cli -h 10.0.0.1 "));
    line.unwrap()
        .split(' ')
        .map(|word| word.trim_matches('\'').to_owned())
        .collect()
}

/// All that a program can do with locks.
fn everything(servers: &[Server], nodes: &[String]) {
    let processes: Vec<Redlock> = [options(), options(), options().fair(true)]
        .into_iter()
        .map(|options| {
            let redlock = Redlock::new(nodes.iter().map(String::as_str)).unwrap();
            redlock.with_options(options).unwrap()
        })
        .collect();
    for redlock in &processes[1..] {
        let mut lock = processes[0].acquire("shop:a", TTL).unwrap();
        lock.extend(2 * TTL).unwrap();
        lock.fencing_token().unwrap();
        let inspection = redlock.inspect("shop:a").unwrap();
        assert!(matches!(inspection.state(), LockState::Held { .. }));
        let busy = redlock.acquire_within("shop:a", TTL, ms(100)).err();
        assert!(matches!(busy, Some(Error::Busy(_))), "{busy:?}");
        std::thread::scope(|scope| {
            let next = scope.spawn(|| redlock.acquire("shop:a", TTL).unwrap().release());
            eventually("it waits on all nodes", || {
                servers.iter().all(|server| server.queued("shop:a") == 1)
            });
            lock.release().unwrap();
            next.join().unwrap().unwrap();
        });
    }
    let report = processes[0].check("shop:check").unwrap();
    let refused = |code: &str| ["rights", "probe", "reach", "auth"].contains(&code);
    let findings: Vec<&str> = report.findings().map(|finding| finding.code()).collect();
    assert!(!findings.iter().any(|code| refused(code)), "{report}");
}

/// What connections find out about their servers is not among the errors there, which operators watch.
fn no_error_is_made(servers: &[Server], urls: &[String]) {
    let mut quiet = Vec::new();
    for server in servers {
        let info = server.unix_url().into_connection_info().unwrap();
        // Redis 7.0 does not know what the redis crate sends otherwise.
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let client = redis::Client::open(info.set_redis_settings(settings)).unwrap();
        quiet.push(client.get_connection().unwrap());
        let reset = redis::cmd("CONFIG").arg("RESETSTAT").to_owned();
        reset.exec(quiet.last_mut().unwrap()).unwrap();
    }
    let locks = |guard: Duration| {
        let locks = Redlock::new(urls.iter().map(String::as_str)).unwrap();
        locks.with_options(options().restart_guard(guard)).unwrap()
    };
    let [holder, waiter] = [(); 2].map(|()| locks(Duration::ZERO));
    let lock = holder.acquire("shop:a", TTL).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| waiter.acquire("shop:a", TTL).unwrap().release().unwrap());
        eventually("it waits on all nodes", || {
            let mut all = quiet.iter_mut();
            all.all(|one| {
                redis::cmd("ZCARD")
                    .arg("{shop:a}:redlock:w")
                    .query::<u64>(one)
                    .unwrap()
                    == 1
            })
        });
        lock.release().unwrap();
    });
    for kind in [
        locks(ms(1000)).semaphore("shop:a", 1).unwrap(),
        holder.semaphore("shop:pool", 1).unwrap(),
        holder.read_lock("shop:b").unwrap(),
        holder.write_lock("shop:b").unwrap(),
        holder.several(["shop:c", "shop:d"]).unwrap(),
    ] {
        kind.acquire(ms(500)).unwrap().release().unwrap();
    }
    for one in &mut quiet {
        let text: String = redis::cmd("INFO").arg("errorstats").query(one).unwrap();
        assert!(!text.contains("errorstat_"), "{text}");
        let text: String = redis::cmd("INFO").arg("commandstats").query(one).unwrap();
        let good = |line: &str| {
            !line.contains("failed_calls=") || line.contains("rejected_calls=0,failed_calls=0")
        };
        assert!(text.lines().all(good), "{text}");
    }
}

/// Acquired, waited for in vain, extended, counted and released.
fn locks_of_all_kinds(urls: &[String], fair: bool) {
    let redlock = Redlock::new(urls.iter().map(String::as_str)).unwrap();
    let redlock = redlock.with_options(options().fair(fair)).unwrap();
    let kinds = [
        redlock.semaphore("shop:pool", 1).unwrap(),
        redlock.read_lock("shop:b").unwrap(),
        redlock.write_lock("shop:b").unwrap(),
        redlock.several(["shop:c", "shop:d"]).unwrap(),
    ];
    for kind in &kinds {
        let mut held = kind.acquire(TTL).unwrap();
        for other in &kinds {
            let readers = format!("{other:?}").contains("read");
            if kind.resources().eq(other.resources()) && !readers {
                let busy = other.acquire_within(TTL, ms(100)).unwrap_err();
                assert!(busy.is_busy(), "{busy}");
            }
        }
        held.extend(2 * TTL).unwrap();
        held.fencing_token().unwrap();
        held.release().unwrap();
    }
    let held = redlock.acquire("shop:b", TTL).unwrap();
    let read = kinds[1].acquire_within(TTL, ms(100)).unwrap_err();
    assert!(read.is_busy(), "{read}");
    held.release().unwrap();
}

/// More than one answer to `SCAN` has.
fn many_keys_are_listed(servers: &[Server], urls: &[String]) {
    let fill = "for i = 1, 3000 do redis.call('SET', 'shop:order:' .. i, i) end";
    for server in servers {
        server.command(&["EVAL", fill, "0"]);
    }
    let redlock = Redlock::new(urls.iter().map(String::as_str)).unwrap();
    let redlock = redlock.with_options(options()).unwrap();
    let listing = redlock.list(None).unwrap();
    assert_eq!(listing.failed().count(), 0, "{listing:?}");
    assert!(listing.key_count() >= 3000);
}

#[test]
fn a_user_with_the_rights_of_the_readme_is_refused_nothing() {
    let servers = Server::several(3);
    let words = rights();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for server in &servers {
        server.command(&words);
        server.command(&["CONFIG", "RESETSTAT"]);
    }
    let url = |server: &Server| server.url_for("locks", "PASSWORD");
    let urls: Vec<String> = servers.iter().map(url).collect();
    no_error_is_made(&servers, &urls);
    for fair in [false, true] {
        locks_of_all_kinds(&urls, fair);
    }
    everything(&servers, &urls);
    many_keys_are_listed(&servers, &urls);
    for server in &servers {
        let refused = server.command(&["ACL", "LOG"]);
        assert_eq!(refused, redis::Value::Array(Vec::new()));
    }
    // And there is nothing among them that nobody needs.
    for right in words.iter().filter_map(|word| word.strip_prefix('+')) {
        eventually(right, || {
            servers.iter().any(|server| server.calls(right) > 0)
        });
    }
    // The restart guard needs INFO, which it has; and other keys are none of its business.
    let guarded = Redlock::new(servers.iter().map(url)).unwrap();
    let guarded = guarded
        .with_options(options().restart_guard(Duration::from_secs(1)))
        .unwrap();
    guarded
        .acquire("shop:b", ms(500))
        .unwrap()
        .release()
        .unwrap();
    let other = Redlock::new(servers.iter().map(url)).unwrap();
    let other = other
        .with_options(Options::new().wait(Duration::ZERO))
        .unwrap();
    let refused = other.acquire("bank:a", TTL).unwrap_err().to_string();
    assert!(
        refused.contains("permission") || refused.contains("NOPERM"),
        "{refused}"
    );
}
