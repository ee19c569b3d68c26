//! Numbers for Prometheus, in its text format, and files of them that are added to. Needs the standard library alone: `examples/lock_metrics.rs`
//! uses this file, too.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

/// The maximum of a file that is read, in bytes.
const LARGEST: u64 = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum SeriesKind {
    Counter,
    Gauge,
    /// Its bounds; beside these there are the sum and the count of all values.
    Histogram(&'static [f64]),
}

/// A metric: its name, its kind, and its help text.
pub(crate) type MetricFamily = (&'static str, SeriesKind, &'static str);

/// The values of some metrics.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    families: &'static [MetricFamily],
    /// By the name with all labels, as it is written.
    values: BTreeMap<String, f64>,
}

impl Series {
    pub(crate) fn new(families: &'static [MetricFamily]) -> Series {
        Series {
            families,
            values: BTreeMap::new(),
        }
    }

    /// Adds to a counter. With 0 there is a first value, without which Prometheus sees no increase.
    pub(crate) fn add(&mut self, name: &str, labels: &[(&str, &str)], by: f64) {
        *self.values.entry(key(name, labels)).or_default() += by;
    }

    /// Sets a gauge.
    pub(crate) fn set(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.values.insert(key(name, labels), value);
    }

    /// Counts a value in a histogram.
    pub(crate) fn observe(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.add(&format!("{name}_sum"), labels, value);
        self.add(&format!("{name}_count"), labels, 1.0);
        let family = self.families.iter().find(|family| family.0 == name);
        let Some((_, SeriesKind::Histogram(bounds), _)) = family else {
            return;
        };
        let name = format!("{name}_bucket");
        for bound in bounds.iter().chain(&[f64::INFINITY]) {
            let le = match bound.is_infinite() {
                true => "+Inf".into(),
                false => bound.to_string(),
            };
            let mut labels = labels.to_vec();
            labels.push(("le", &le));
            self.add(&name, &labels, f64::from(u8::from(value <= *bound)));
        }
    }

    /// All of it, as Prometheus reads it.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for family in self.families {
            let (name, kind, help) = family;
            let kind = match kind {
                SeriesKind::Counter => "counter",
                SeriesKind::Gauge => "gauge",
                SeriesKind::Histogram(_) => "histogram",
            };
            text += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
            let values = self.values.iter();
            let mut values: Vec<_> = values.filter(|(key, _)| is_of(family, key)).collect();
            if kind == "histogram" {
                // Buckets follow one another by their bounds.
                values.sort_by(|(one, _), (other, _)| {
                    let (one, other) = (bound(one), bound(other));
                    one.0.cmp(other.0).then(one.1.total_cmp(&other.1))
                });
            }
            for (key, value) in values {
                text += &format!("{key} {value}\n");
            }
        }
        text
    }

    /// Adds all of it to what is in the file, which is replaced as a whole: a reader finds the old one or the new one. Gauges take the place of
    /// older ones. The caller sees to it that no other process does this to the file at the same time.
    ///
    /// # Errors
    ///
    /// The file cannot be read, written or replaced, or has something else in it. It is unchanged then.
    pub(crate) fn add_to(&self, path: &Path) -> io::Result<()> {
        let mut all = Series::new(self.families);
        let old = match fs::metadata(path) {
            Ok(old) if !old.is_file() || old.len() > LARGEST => {
                let what = "it is no regular file of at most";
                return Err(io::Error::other(format!("{what} {LARGEST} bytes")));
            }
            Ok(old) => {
                let mut text = String::new();
                File::open(path)?.take(LARGEST).read_to_string(&mut text)?;
                all.read(&text)?;
                Some(old)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        for (key, value) in &self.values {
            let gauge =
                |family: &&MetricFamily| family.1 == SeriesKind::Gauge && is_of(family, key);
            match self.families.iter().find(gauge) {
                Some(_) => drop(all.values.insert(key.clone(), *value)),
                None => *all.values.entry(key.clone()).or_default() += value,
            }
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Hidden, and with an ending that node_exporter does not read.
        let new = path.with_file_name(format!(".{name}.new"));
        let written = write_new(&new, &all.text(), old);
        let replaced = written.and_then(|()| fs::rename(&new, path));
        replaced.inspect_err(|_| drop(fs::remove_file(&new)))
    }

    fn read(&mut self, text: &str) -> io::Result<()> {
        for (number, line) in text.lines().enumerate() {
            if line.starts_with('#') || line.is_empty() {
                continue;
            }
            let (key, value) = self.value(line).ok_or_else(|| {
                let number = number + 1;
                let what = "is none of these metrics: move the file away, and a new one is begun";
                io::Error::other(format!("line {number} {what}"))
            })?;
            self.values.insert(key.to_owned(), value);
        }
        Ok(())
    }

    fn value<'a>(&self, line: &'a str) -> Option<(&'a str, f64)> {
        let (key, value) = line.rsplit_once(' ')?;
        let value: f64 = value.parse().ok()?;
        let is_ours = self.families.iter().any(|family| is_of(family, key));
        let is_whole = key.ends_with('}') || !key.contains(['{', ' ']);
        (is_ours && is_whole && value.is_finite()).then_some((key, value))
    }
}

fn key(name: &str, labels: &[(&str, &str)]) -> String {
    let escaped = |value: &str| {
        value
            .replace('\\', r"\\")
            .replace('"', "\\\"")
            .replace('\n', r"\n")
    };
    let label = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
    let labels: Vec<String> = labels.iter().map(label).collect();
    match &*labels.join(",") {
        "" => name.into(),
        labels => format!("{name}{{{labels}}}"),
    }
}

fn is_of((name, kind, _): &MetricFamily, key: &str) -> bool {
    let base = key.split('{').next().unwrap_or(key);
    match (base.strip_prefix(name), kind) {
        (Some(part), SeriesKind::Counter | SeriesKind::Gauge) => part.is_empty(),
        (Some(part), SeriesKind::Histogram(_)) => ["_bucket", "_sum", "_count"].contains(&part),
        (None, _) => false,
    }
}

/// A bucket's other labels, and its bound.
fn bound(key: &str) -> (&str, f64) {
    let (others, bound) = key.rsplit_once("le=\"").unwrap_or((key, ""));
    let bound = bound.trim_end_matches("\"}");
    (others, bound.parse().unwrap_or_default())
}

/// `old`: the file in whose place it comes.
fn write_new(path: &Path, text: &str, old: Option<fs::Metadata>) -> io::Result<()> {
    // One that was left behind, by a process that was killed.
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes())?;
    let Some(old) = old else {
        return Ok(());
    };
    keep_owner(&file, &old);
    file.set_permissions(old.permissions())
}

/// Gives the file to the owner and the group of the old one, as far as this process may.
#[cfg(unix)]
fn keep_owner(file: &File, old: &fs::Metadata) {
    use std::os::unix::fs::{MetadataExt, fchown};
    let group = Some(old.gid());
    let _ = fchown(file, Some(old.uid()), group).or_else(|_| fchown(file, None, group));
}

#[cfg(not(unix))]
fn keep_owner(_: &File, _: &fs::Metadata) {}
