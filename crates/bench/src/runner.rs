//! Runs the variants of a workload in turn, round by round, each in the same state of memory.
//!
//! On the virtual machines this is measured on, the host takes free memory back; the first touch of such a
//! page costs twenty times that of another. So a child process touches as much as a run may use, right
//! before every timed run, and gives it back to the guest's kernel by ending.

use crate::table::{Row, Sample, Unit, Variant};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::process::Command;

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How often each variant runs.
    pub rounds: usize,
    /// Small inputs.
    pub quick: bool,
    /// Only workloads whose group and name contain this.
    pub only: Option<String>,
    /// Only variants whose name contains this (to profile one of them).
    pub variant: Option<String>,
    /// Bytes of memory touched before every timed run.
    pub touch_bytes: u64,
}

type Job<'a> = Box<dyn FnMut() -> Result<Sample, String> + 'a>;

/// A workload and what is compared on it.
pub struct Workload<'a> {
    /// Group in tables.
    pub group: &'a str,
    /// What is done.
    pub name: String,
    /// On which device.
    pub device: String,
    /// Of the values.
    pub unit: Unit,
    /// What the report measured.
    pub reported: &'static str,
    /// Name and job of each variant. A job prepares, times its work alone, and cleans up.
    pub variants: Vec<(String, Job<'a>)>,
}

impl<'a> Workload<'a> {
    /// Adds a variant.
    pub fn variant(
        mut self,
        name: impl Into<String>,
        job: impl FnMut() -> Result<Sample, String> + 'a,
    ) -> Self {
        self.variants.push((name.into(), Box::new(job)));
        self
    }
}

impl Plan {
    /// Whether a workload was asked for.
    pub fn wants(&self, group: &str, name: &str) -> bool {
        self.only
            .as_deref()
            .is_none_or(|part| format!("{group}: {name}").contains(part))
    }

    /// Measures a workload, unless it was not asked for.
    pub fn run(&self, workload: Workload<'_>, rows: &mut Vec<Row>) -> Result<(), String> {
        let Workload {
            group,
            name,
            device,
            unit,
            reported,
            variants: mut jobs,
        } = workload;
        if let Some(part) = &self.variant {
            // "delalloc, tree" is in "nodelalloc, tree", too.
            let exact = jobs.iter().any(|(name, _)| name == part);
            jobs.retain(|(name, _)| {
                if exact {
                    name == part
                } else {
                    name.contains(part.as_str())
                }
            });
        }
        if !self.wants(group, &name) || jobs.is_empty() {
            return Ok(());
        }
        let bar = ProgressBar::new((self.rounds * jobs.len()) as u64);
        if let Ok(style) =
            ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {elapsed_precise} {msg}")
        {
            bar.set_style(style);
        }
        bar.set_prefix(format!("{group}: {name}"));
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); jobs.len()];
        for round in 0..self.rounds {
            for (k, (variant, job)) in jobs.iter_mut().enumerate() {
                bar.set_message(variant.clone());
                touch(self.touch_bytes)?;
                let sample = job().map_err(|e| format!("{group}: {name}, {variant}: {e}"))?;
                if bar.is_hidden() {
                    let value = sample.value;
                    let unit = unit.name();
                    eprintln!(
                        "{group}: {name}, {variant}, round {}: {value:.1} {unit}",
                        round + 1
                    );
                }
                samples[k].push(sample);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        let variants = jobs
            .iter()
            .zip(samples)
            .map(|((name, _), samples)| summarise(name, &samples))
            .collect();
        rows.push(Row {
            group: group.to_owned(),
            workload: name,
            device,
            unit,
            variants,
            reported,
        });
        Ok(())
    }
}

fn summarise(name: &str, samples: &[Sample]) -> Variant {
    let mut extra: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for sample in samples {
        for (name, value) in &sample.extra {
            extra.entry(name).or_default().push(*value);
        }
    }
    Variant {
        name: name.to_owned(),
        values: samples.iter().map(|s| s.value).collect(),
        extra: extra
            .iter()
            .map(|(name, values)| ((*name).to_owned(), crate::stats::median(values)))
            .collect(),
    }
}

/// Has a child touch and free so much memory.
pub fn touch(bytes: u64) -> Result<(), String> {
    if bytes == 0 {
        return Ok(());
    }
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    crate::machine::run(Command::new(own).arg("touch-memory").arg(bytes.to_string()))
}

/// What the child does.
pub fn touch_here(bytes: u64) {
    let mut memory = vec![0u8; usize::try_from(bytes).unwrap_or(0)];
    for page in memory.chunks_mut(4096) {
        page[0] = 1;
    }
    std::hint::black_box(&memory);
}
