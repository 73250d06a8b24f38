/* What makes the images of ../*-names-by-linux.img.zst inside a virtual machine; see linux_names.rs. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>
#include <errno.h>
#include <dirent.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <linux/fs.h>
#include <linux/fscrypt.h>
#include <linux/fsverity.h>
#ifndef FS_CASEFOLD_FL
#define FS_CASEFOLD_FL 0x40000000
#endif
static void die(const char*w){fprintf(stderr,"%s: %s\n",w,strerror(errno));exit(1);}
static int hexv(int c){return c<='9'?c-'0':(c|32)-'a'+10;}
/* unescape \xHH */
static char*un(const char*s){char*o=malloc(strlen(s)+1),*p=o;while(*s){if(s[0]=='\\'&&s[1]=='x'){*p++=hexv(s[2])*16+hexv(s[3]);s+=4;}else *p++=*s++;}*p=0;return o;}
static void esc(const char*s){for(;*s;s++){unsigned char c=*s;if(c<33||c>126||c=='\\')printf("\\x%02x",c);else putchar(c);}}
int main(int n,char**a){
 const char*c=a[1];
 if(!strcmp(c,"fold")){int f=open(a[2],O_RDONLY);int fl;if(f<0||ioctl(f,FS_IOC_GETFLAGS,&fl))die("get");fl|=FS_CASEFOLD_FL;if(ioctl(f,FS_IOC_SETFLAGS,&fl))die("fold");return 0;}
 if(!strcmp(c,"verity")){int f=open(a[2],O_RDONLY);struct fsverity_enable_arg e={0};e.version=1;e.hash_algorithm=FS_VERITY_HASH_ALG_SHA256;e.block_size=4096;char salt[]="blockwright";e.salt_size=11;e.salt_ptr=(unsigned long)salt;if(f<0||ioctl(f,FS_IOC_ENABLE_VERITY,&e))die("verity");
  struct{struct fsverity_digest d;char b[64];}m;m.d.digest_size=64;if(ioctl(f,FS_IOC_MEASURE_VERITY,&m))die("measure");for(int i=0;i<m.d.digest_size;i++)printf("%02x",(unsigned char)m.d.digest[i]);puts("");return 0;}
 if(!strcmp(c,"encrypt")){ /* mount dir padflags */
  struct{struct fscrypt_add_key_arg k;char raw[64];}k;memset(&k,0,sizeof k);k.k.key_spec.type=FSCRYPT_KEY_SPEC_TYPE_IDENTIFIER;k.k.raw_size=64;for(int i=0;i<64;i++)k.raw[i]=i*7+3;
  int m=open(a[2],O_RDONLY);if(m<0||ioctl(m,FS_IOC_ADD_ENCRYPTION_KEY,&k))die("add key");
  struct fscrypt_policy_v2 p;memset(&p,0,sizeof p);p.version=2;p.contents_encryption_mode=FSCRYPT_MODE_AES_256_XTS;p.filenames_encryption_mode=FSCRYPT_MODE_AES_256_CTS;p.flags=atoi(a[4]);memcpy(p.master_key_identifier,k.k.key_spec.u.identifier,16);
  int d=open(a[3],O_RDONLY);if(d<0||ioctl(d,FS_IOC_SET_ENCRYPTION_POLICY,&p))die("policy");return 0;}
 if(!strcmp(c,"make")||!strcmp(c,"touch")){ /* dir: names from stdin, escaped, one file each whose content is the escaped name */
  char line[2000];int dir=open(a[2],O_RDONLY|O_DIRECTORY);if(dir<0)die(a[2]);
  while(fgets(line,sizeof line,stdin)){line[strcspn(line,"\n")]=0;char*u=un(line);int f=openat(dir,u,O_WRONLY|O_CREAT|O_EXCL,0644);if(f<0){printf("%s %s\n",line,strerrorname_np(errno));continue;}if(*c==109)write(f,line,strlen(line));close(f);}return 0;}
 if(!strcmp(c,"ask")){ /* dir: asked names from stdin -> "asked content-or-errno" */
  char line[2000],b[2000];int dir=open(a[2],O_RDONLY|O_DIRECTORY);if(dir<0)die(a[2]);
  while(fgets(line,sizeof line,stdin)){line[strcspn(line,"\n")]=0;char*u=un(line);int f=openat(dir,u,O_RDONLY);if(f<0){printf("%s\t!%s\n",line,strerrorname_np(errno));continue;}int k=read(f,b,sizeof b);if(k<0)k=0;printf("%s\t%.*s\n",line,k,b);close(f);}return 0;}
 if(!strcmp(c,"list")){DIR*d=opendir(a[2]);struct dirent*e;if(!d)die(a[2]);while((e=readdir(d))){if(!strcmp(e->d_name,".")||!strcmp(e->d_name,".."))continue;struct stat s;if(fstatat(dirfd(d),e->d_name,&s,AT_SYMLINK_NOFOLLOW))die("stat");esc(e->d_name);printf("\t%o\t%ld\t%lu\t",s.st_mode,(long)s.st_size,(unsigned long)s.st_ino);if(S_ISLNK(s.st_mode)){char t[5000];int k=readlinkat(dirfd(d),e->d_name,t,sizeof t-1);if(k>=0){t[k]=0;esc(t);}}puts("");}return 0;}
 return 2;}
