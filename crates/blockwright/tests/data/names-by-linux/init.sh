#!/bin/busybox sh
# Process 1 of the virtual machine: busybox, guest.c as `guest`, modules in /m in the order of /m/order; vda is f2fs, vdb ext4.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
for m in $(cat /m/order); do insmod /m/$m; done
uname -r
fs() { # type dev
 T=$1; D=$2; M=/mnt
 set -e
 mount -t $T $D $M
 cd $M
 mkdir fold fold/words fold/many plain
 # children inherit it
 rmdir fold/words fold/many; guest fold fold; mkdir fold/words fold/many
 guest make fold/words < /w/words > /tmp.refused
 guest make fold/many < /w/many
 guest make plain < /w/words
 seq 1 30000 | head -c 100000 > verity.big; : > verity.empty; seq 1 2000 | head -c 4096 > verity.block
 for f in big empty block; do echo "$f $(sha256sum < verity.$f | cut -d' ' -f1) $(guest verity verity.$f)"; done > /tmp.verity
 mkdir secret secretfold
 guest encrypt $M secret 0
 guest touch secret < /w/secret
 mkdir secret/sub secret/sub/subsub; echo hidden > secret/sub/file; ln -s target secret/link; ln -s $(seq 1 200 | tr -d '\n' | head -c 300) secret/longlink
 seq 1 5000 | head -c 6000 > secret/large
 guest encrypt $M secretfold 3; guest fold secretfold
 guest touch secretfold < /w/words >/dev/null
 guest ask secretfold < /w/words.ask | grep -vc '!' 
 cp /tmp.refused $M/refused; cp /tmp.verity $M/verity.sums
 cd /; umount $M
 mount -t $T $D $M; cd $M
 guest ask fold/words < /w/words.ask > /asked.words
 guest ask fold/many < /w/many.ask > /asked.many
 guest ask plain < /w/words.ask > /asked.plain
 for d in fold/words fold/many secret secretfold; do guest list $d | sort > /list.$(echo $d | tr / -); done
 sub=$(ls -d secret/* | while read d; do [ -d $d ] && echo $d; done | head -1)
 guest list $sub > /list.secret-sub
 for f in verity.big secret/*; do dd if=/dev/zero of=$f conv=notrunc count=1 2>&1 | head -1; done | sort | uniq -c | head -5
 cat $sub/* 2>&1 | head -2
 cp /asked.* /list.* $M
 find . | wc -l
 cd /; umount $M
 set +e
}
for a in "f2fs /dev/vda" "ext4 /dev/vdb"; do echo "== $a"; (fs $a) 2>&1; echo "status $?"; done
dmesg | grep -iE "f2fs|ext4|verity|crypt|warn|bug" | tail -30
sync; poweroff -f
