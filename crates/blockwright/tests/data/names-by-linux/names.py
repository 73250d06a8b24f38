# Writes the lists that init.sh reads in /w: names that are made, and names that are asked for.
def esc(b):
    return ''.join(chr(c) if 33<=c<=126 and c!=92 else '\\x%02x'%c for c in b)
words = ["README","Makefile","Straße","GROẞ","ÅNGSTRÖM","ΣΊΣΥΦΟΣ","İstanbul","ıssız","ﬁle","cafe\u0301","ŸES","ПРИВЕТ-мир","ՀԱՅ","ᏣᎳᎩ","ꮳꮃꭹ-2","\u1E9B\u0323","한글","\u1112\u1161\u11ab-jamo","日本語","ＦＵＬＬwidth","soft\u00adhyphen","zero\u200dwidth","ΐ","ǅ","K\u212Aelvin","\u2126hm","ﬃ","ᾀ","Ὦ","\U00010400desert","\U0001E900adlam","𝐀math","a\u0323\u0307","dot.TXT","UPPER.txt","x"*100+"É","é"*60,"ſ-long-s","Ω\u0345","ŉ","\u0390x","ß","ǰ"]
raw = [w.encode() for w in words] + [b"bad\xff\xfeBYTES", b"\xc3", b"trunc\xe2\x82"]
many = ["Entry-%04d-ÄÖÜ"%i for i in range(400)]
asks=[]
for w in words:
    asks += [w, w.upper(), w.lower(), w.swapcase(), w.title(), w.casefold()]
    import unicodedata
    for f in ("NFC","NFD","NFKC","NFKD"): asks.append(unicodedata.normalize(f,w))
asks += ["readme","README ","strasse","STRASSE","STRAẞE","gross","softhyphen","zerowidth","istanbul","i̇stanbul","issiz","file","FILE","fi","ss","SS","\u1fbe","kkelvin","ohm","ωhm","ffi","nothing","DOT.txt","upper.TXT","σίσυφος","σίσυφοσ","s-long-s","fullwidth","Amath"]
seen=[];
for a in asks:
    b=a.encode()
    if 0<len(b)<=255 and b'/' not in b and b not in seen: seen.append(b)
seen += [b"bad\xff\xfeBYTES", b"BAD\xff\xfebytes", b"\xc3", b"\xe3", b"TRUNC\xe2\x82"]
open('words','w').write('\n'.join(esc(b) for b in raw)+'\n')
open('words.ask','w').write('\n'.join(esc(b) for b in seen)+'\n')
open('many','w').write('\n'.join(esc(m.encode()) for m in many)+'\n')
open('many.ask','w').write('\n'.join(esc((m.upper() if i%3==0 else m.lower() if i%3==1 else unicodedata.normalize("NFD",m.swapcase())).encode()) for i,m in enumerate(many))+'\nentry-0400-\\xc3\\xa4\n')
sec = ["a","short","name with blank","x"*47,"y"*48,"z"*100,"w"*149,"v"*150,"u"*151,"t"*200,"s"*255,"Ünïcödé"]+["file-%03d"%i for i in range(120)]
open('secret','w').write('\n'.join(esc(b.encode()) for b in sec)+'\n')
