fn main() {
    let a: Vec<String> = std::env::args().collect();
    let t = std::time::Instant::now();
    let r = blockwright::VolumeBuilder::new().size_auto(a[3].parse().unwrap()).from(&a[1]).create(&a[2]).unwrap();
    eprintln!("{:?} {:?}", t.elapsed(), r);
    let v = blockwright::Volume::open(&a[2], &blockwright::VolumeOptions::read_only()).unwrap();
    if a.len() > 4 {
        for e in v.walk("/") { let e = e.unwrap(); println!("{} {:?}", e.path.display(), v.list_xattr(&e.path)); }
    }
}
