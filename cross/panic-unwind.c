/* What libgcc's unwinder asks of glibc and musl does not have: "which exception tables cover this address?". A static program
 * has one answer, the PT_GNU_EH_FRAME segment of its only image.
 * The contract is glibc's <dlfcn.h>, version 2.35: 0 and a filled result, or -1. */
#include <elf.h>
#include <link.h>
#include <pthread.h>

struct dl_find_object {
    unsigned long long dlfo_flags;
    void *dlfo_map_start;
    void *dlfo_map_end;
    struct link_map *dlfo_link_map;
    void *dlfo_eh_frame;
    unsigned long long reserved[7];
};

/* the linker puts it where the ELF header is loaded */
extern const char __ehdr_start[];

int _dl_find_object(void *address, struct dl_find_object *result) {
    const ElfW(Ehdr) *header = (const void *)__ehdr_start;
    const ElfW(Phdr) *segments = (const void *)(__ehdr_start + header->e_phoff);
    const char *base = 0, *end = 0, *tables = 0;
    for (int i = 0; i < header->e_phnum; i++) {
        const ElfW(Phdr) *segment = &segments[i];
        /* the image's first segment holds its header: this tells where a position independent program was loaded */
        if (segment->p_type == PT_LOAD && segment->p_offset == 0) base = __ehdr_start - segment->p_vaddr;
    }
    for (int i = 0; i < header->e_phnum; i++) {
        const ElfW(Phdr) *segment = &segments[i];
        if (segment->p_type == PT_LOAD && base + segment->p_vaddr + segment->p_memsz > end)
            end = base + segment->p_vaddr + segment->p_memsz;
        if (segment->p_type == PT_GNU_EH_FRAME) tables = base + segment->p_vaddr;
    }
    if (!tables || (char *)address < __ehdr_start || (char *)address >= end) return -1;
    *result = (struct dl_find_object){
        .dlfo_map_start = (void *)__ehdr_start, .dlfo_map_end = (void *)end, .dlfo_eh_frame = (void *)tables};
    return 0;
}

/* libgcc's unwinder refers to these weakly and calls them all if one of them is there. A weak reference takes nothing out of libc.a:
 * without this, the first panic calls address 0. */
__attribute__((used)) static void *const taken_from_libc[] = {
    (void *)pthread_once,        (void *)pthread_mutex_lock,  (void *)pthread_mutex_unlock, (void *)pthread_key_create,
    (void *)pthread_getspecific, (void *)pthread_setspecific,
};
