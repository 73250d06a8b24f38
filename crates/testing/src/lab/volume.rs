//! Editing volumes byte by byte, with the checksums that go with them.

use blockwright_ondisk::ext4::dir::{self, DirBlock, DirFormat};
use blockwright_ondisk::ext4::extent::{self, ExtentNode, NodePlace, NodeRules};
use blockwright_ondisk::ext4::htree;
use blockwright_ondisk::ext4::inode::{self, InodeFlags};
use blockwright_ondisk::ext4::superblock::RawSuperblock;
use blockwright_ondisk::ext4::{
    BlockNo, Geometry, GroupDesc, GroupNo, Ino, Inode, Superblock, xattr,
};

/// A volume in memory.
#[derive(Clone)]
pub struct Volume {
    pub image: Vec<u8>,
    pub geo: Geometry,
}

impl Volume {
    pub fn new(image: Vec<u8>) -> Self {
        let geo = Superblock::parse(&image[1024..], None).unwrap().geo;
        Self { image, geo }
    }

    pub fn at(&self, block: BlockNo) -> usize {
        self.geo.block_offset(block) as usize
    }

    pub fn block(&mut self, block: BlockNo) -> &mut [u8] {
        let (at, len) = (self.at(block), self.geo.block_len());
        &mut self.image[at..at + len]
    }

    pub fn sb(&self) -> RawSuperblock {
        RawSuperblock::read(&self.image[1024..]).unwrap()
    }

    pub fn edit_sb(&mut self, edit: impl FnOnce(&mut RawSuperblock)) {
        let mut sb = self.sb();
        edit(&mut sb);
        sb.set_checksum();
        self.image[1024..2048].copy_from_slice(&sb.to_bytes());
    }

    fn desc_at(&self, group: u32) -> usize {
        let (index, offset) = self.geo.desc_position(GroupNo(group));
        self.at(self.geo.desc_block(index).unwrap()) + offset
    }

    pub fn desc(&self, group: u32) -> GroupDesc {
        GroupDesc::decode(&self.image[self.desc_at(group)..], &self.geo).unwrap()
    }

    pub fn edit_desc(&mut self, group: u32, edit: impl FnOnce(&mut GroupDesc)) {
        let mut desc = self.desc(group);
        edit(&mut desc);
        let at = self.desc_at(group);
        let end = at + usize::from(self.geo.desc_size);
        desc.encode_into(&mut self.image[at..end], &self.geo, GroupNo(group))
            .unwrap();
    }

    /// The bytes of a descriptor.
    pub fn raw_desc(&mut self, group: u32) -> &mut [u8] {
        let at = self.desc_at(group);
        &mut self.image[at..]
    }

    pub fn inode_at(&self, ino: Ino) -> usize {
        let (group, _) = self.geo.split_ino(ino).unwrap();
        let table = self.desc(group.0).inode_table;
        let (block, offset) = self.geo.inode_location(ino, table).unwrap();
        self.at(block) + offset
    }

    pub fn raw_inode(&mut self, ino: Ino) -> &mut [u8] {
        let at = self.inode_at(ino);
        let len = usize::from(self.geo.inode_size);
        &mut self.image[at..at + len]
    }

    pub fn inode(&self, ino: Ino) -> Inode {
        let at = self.inode_at(ino);
        Inode::decode(&self.image[at..], &self.geo, ino).unwrap()
    }

    /// Changes an inode's bytes and makes its checksum right again.
    pub fn edit_raw(&mut self, ino: Ino, edit: impl FnOnce(&mut [u8])) {
        let geo = self.geo.clone();
        let raw = self.raw_inode(ino);
        edit(raw);
        inode::set_checksum(raw, &geo, ino).unwrap();
    }

    pub fn edit_inode(&mut self, ino: Ino, edit: impl FnOnce(&mut Inode)) {
        let geo = self.geo.clone();
        let mut inode = self.inode(ino);
        edit(&mut inode);
        inode.encode_into(self.raw_inode(ino), &geo, ino).unwrap();
    }

    /// Blocks of a file mapped by extents of one or two levels, or by direct blocks.
    pub fn blocks(&self, ino: Ino) -> Vec<BlockNo> {
        let inode = self.inode(ino);
        if !inode.flags.contains(InodeFlags::EXTENTS) {
            return (0..12)
                .map(|n| u32::from_le_bytes(inode.block[n * 4..n * 4 + 4].try_into().unwrap()))
                .filter(|b| *b != 0)
                .map(|b| BlockNo(u64::from(b)))
                .collect();
        }
        let mut out = Vec::new();
        let mut nodes = vec![(inode.block.to_vec(), NodePlace::Inode)];
        while let Some((bytes, place)) = nodes.pop() {
            let node = ExtentNode::parse(&bytes, place, NodeRules::ROOT, &self.geo).unwrap();
            for e in node.extents() {
                out.extend((0..u64::from(e.len)).map(|n| BlockNo(e.physical.0 + n)));
            }
            for i in node.indexes() {
                let at = self.at(i.child);
                let bytes = self.image[at..at + self.geo.block_len()].to_vec();
                nodes.push((bytes, NodePlace::Block(i.child)));
            }
        }
        out
    }

    /// The extent blocks right below the root.
    pub fn extent_blocks(&self, ino: Ino) -> Vec<BlockNo> {
        let inode = self.inode(ino);
        ExtentNode::parse(&inode.block, NodePlace::Inode, NodeRules::ROOT, &self.geo)
            .unwrap()
            .indexes()
            .map(|i| i.child)
            .collect()
    }

    pub fn format(&self) -> DirFormat {
        DirFormat::new(&self.geo)
    }

    /// Where a name is: block of the directory, offset in it, inode.
    pub fn find(&self, dir: Ino, name: &str) -> (BlockNo, usize, Ino) {
        for block in self.blocks(dir) {
            let at = self.at(block);
            let bytes = &self.image[at..at + self.geo.block_len()];
            let found = DirBlock::entries_of(bytes, self.format())
                .iter()
                .map_while(Result::ok)
                .find(|e| e.is_used() && e.name == name.as_bytes());
            if let Some(e) = found {
                return (block, e.offset, e.ino);
            }
        }
        panic!("no {name:?} in directory {dir}");
    }

    pub fn lookup(&self, path: &str) -> Ino {
        path.split('/')
            .filter(|n| !n.is_empty())
            .fold(Ino::ROOT, |dir, name| self.find(dir, name).2)
    }

    /// Changes a leaf of a directory and makes its checksum right again.
    pub fn edit_leaf(&mut self, dir: Ino, block: BlockNo, edit: impl FnOnce(&mut [u8])) {
        let seed = self.geo.inode_seed(dir, self.inode(dir).generation);
        let format = self.format();
        let bytes = self.block(block);
        edit(bytes);
        dir::set_leaf_checksum(bytes, &format, seed).unwrap();
    }

    /// Changes an index block of a directory and makes its checksum right again.
    pub fn edit_index(
        &mut self,
        dir: Ino,
        block: BlockNo,
        place: htree::DxPlace,
        edit: impl FnOnce(&mut [u8]),
    ) {
        let seed = self.geo.inode_seed(dir, self.inode(dir).generation);
        let format = self.format();
        let bytes = self.block(block);
        edit(bytes);
        let _ = htree::set_checksum(bytes, place, &format, seed);
    }

    pub fn edit_extent_block(&mut self, ino: Ino, block: BlockNo, edit: impl FnOnce(&mut [u8])) {
        let geo = self.geo.clone();
        let seed = geo.inode_seed(ino, self.inode(ino).generation);
        let bytes = self.block(block);
        edit(bytes);
        let _ = extent::set_checksum(bytes, &geo, seed);
    }

    pub fn edit_xattr_block(&mut self, block: BlockNo, edit: impl FnOnce(&mut [u8])) {
        let geo = self.geo.clone();
        let bytes = self.block(block);
        edit(bytes);
        xattr::set_block_checksum(bytes, block, &geo).unwrap();
    }

    /// Changes a bitmap and the checksum in its descriptor.
    pub fn edit_block_bitmap(&mut self, group: u32, edit: impl FnOnce(&mut [u8])) {
        let geo = self.geo.clone();
        let place = self.desc(group).block_bitmap;
        let bytes = self.block(place);
        edit(bytes);
        let bytes = bytes.to_vec();
        self.edit_desc(group, |d| d.set_block_bitmap_csum(&bytes, &geo));
    }

    pub fn edit_inode_bitmap(&mut self, group: u32, edit: impl FnOnce(&mut [u8])) {
        let geo = self.geo.clone();
        let place = self.desc(group).inode_bitmap;
        let bytes = self.block(place);
        edit(bytes);
        let bytes = bytes.to_vec();
        self.edit_desc(group, |d| d.set_inode_bitmap_csum(&bytes, &geo));
    }
}
