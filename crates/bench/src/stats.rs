//! Medians, spreads, and the ratio of alternating pairs.

use serde::Serialize;

/// One workload: a row of seconds for each peer, in the order of the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// The workload's name.
    pub name: String,
    /// Bytes or operations that the workload moves, and their unit, for a rate.
    pub amount: Option<(f64, &'static str)>,
    /// Peer → seconds per round. The first is blockwright.
    pub seconds: Vec<(String, Vec<f64>)>,
}

/// Middle of the sorted values; the mean of the two middle ones for an even count.
pub fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    match v.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => v[n / 2],
        n => f64::midpoint(v[n / 2 - 1], v[n / 2]),
    }
}

fn range(values: &[f64]) -> (f64, f64) {
    values
        .iter()
        .fold((f64::INFINITY, 0.0), |(lo, hi), v| (lo.min(*v), hi.max(*v)))
}

/// How many times faster the first is than the second, pair by pair: `(median, min, max)`.
pub fn speedup(ours: &[f64], theirs: &[f64]) -> (f64, f64, f64) {
    let pairs: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| b / a).collect();
    let (lo, hi) = range(&pairs);
    (median(&pairs), lo, hi)
}

/// All tables as one of Markdown.
pub fn markdown(tables: &[Table]) -> String {
    let mut out = String::from(
        "| workload | program | median s | min–max s | rate | blockwright is faster by (pairs: median, min–max) |\n|---|---|---|---|---|---|\n",
    );
    for table in tables {
        let Some((_, ours)) = table.seconds.first() else {
            continue;
        };
        for (k, (peer, seconds)) in table.seconds.iter().enumerate() {
            let (lo, hi) = range(seconds);
            let m = median(seconds);
            let rate = table
                .amount
                .map(|(n, unit)| format!("{:.0} {unit}/s", n / m))
                .unwrap_or_default();
            let ratio = if k == 0 {
                String::new()
            } else {
                let (m, lo, hi) = speedup(ours, seconds);
                format!("{m:.2}× ({lo:.2}–{hi:.2})")
            };
            out.push_str(&format!(
                "| {} | {peer} | {m:.3} | {lo:.3}–{hi:.3} | {rate} | {ratio} |\n",
                if k == 0 { table.name.as_str() } else { "" }
            ));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn pairs_keep_their_rounds() {
        // Each pair says twice as fast, though the machine slowed down in the second round.
        let (m, lo, hi) = speedup(&[1.0, 10.0], &[2.0, 20.0]);
        assert!((m - 2.0).abs() < 1e-12 && (lo - 2.0).abs() < 1e-12 && (hi - 2.0).abs() < 1e-12);
    }
}
