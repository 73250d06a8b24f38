//! Every input of the corpora, and every seed, through its target: on the stable compiler, with checksums in force.
//! `cargo xtask fuzz --replay` does the same with checksums off, which is how the inputs were found.

use blockwright_fuzz::{TARGETS, mutate};
use std::path::Path;

#[test]
fn corpora_are_replayed() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let (mut inputs, mut bytes) = (0, 0);
    for target in TARGETS {
        for seed in (target.seeds)() {
            (target.run)(&seed);
        }
        let Ok(dir) = std::fs::read_dir(corpus.join(target.name)) else {
            panic!("{} has no corpus", target.name);
        };
        for entry in dir {
            let input = std::fs::read(entry.unwrap().path()).unwrap();
            (inputs, bytes) = (inputs + 1, bytes + input.len());
            (target.run)(&input);
        }
    }
    assert!(inputs > 100, "{inputs} inputs");
    assert!(
        bytes < 1 << 20,
        "the corpora have {bytes} bytes: minimise them"
    );
}

/// The mutator's own work: a few hundred inputs a target, the same each time.
#[test]
fn mutated_seeds_violate_nothing() {
    for target in TARGETS {
        let bases = (target.bases)();
        if bases.is_empty() {
            continue;
        }
        let seeds = (target.seeds)();
        for n in 0..40u64 {
            let mut input = seeds[n as usize % seeds.len()].clone();
            for k in 0..=n % 4 {
                input = mutate::mutate(bases, &input, n * 16 + k);
            }
            (target.run)(&input);
        }
    }
}

#[test]
fn checksums_are_in_force_here() {
    assert!(!blockwright_fuzz::checksums_are_off());
}

#[test]
fn bases_have_fields_of_all_structures() {
    use blockwright_fuzz::base;
    for base in base::cleanly_closed().iter().chain(base::unclean()) {
        let (fields, blocks) = (base.map.fields.len(), base.map.blocks.len());
        println!("{}: {fields} fields, {blocks} blocks", base.name);
        assert!(
            fields > 1000 && blocks > 10,
            "{}: {fields} fields, {blocks} blocks",
            base.name
        );
        let journal = base.map.fields.iter().any(|f| f.big_endian);
        assert_eq!(
            journal,
            base.name.contains("journal") || base.name.contains("commit") || base.name == "ext4"
        );
    }
}
