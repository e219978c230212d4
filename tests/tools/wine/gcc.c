// gcc.exe and objdump.exe: they run Linux's program for Windows with this name. Wine starts programs of Linux, but does
// not wait for them. So a script, HELPER, writes the exit status and all output into a file, for which this one waits.
#include <stdio.h>
#include <stdlib.h>
#include <windows.h>

int main(void) {
    static char name[MAX_PATH], folder[MAX_PATH], answer[MAX_PATH], line[1 << 15];
    GetModuleFileNameA(NULL, name, MAX_PATH);
    GetTempPathA(MAX_PATH, folder);
    GetTempFileNameA(folder, "gcc", 0, answer); // empty until gcc has ended
    char *arguments = GetCommandLineA();
    char end = *arguments == '"' ? '"' : ' '; // of the name of this program
    do arguments++; while (*arguments && *arguments != end);
    snprintf(line, sizeof line, "Z:\\bin\\bash " HELPER " \"%s\" %s %s", name, answer, arguments + (*arguments == '"'));
    STARTUPINFOA start = {sizeof start};
    PROCESS_INFORMATION process; // of a program of Linux it has no handles
    if (!CreateProcessA(NULL, line, NULL, NULL, FALSE, 0, NULL, NULL, &start, &process)) return 127;
    for (;; Sleep(10)) {
        int status, letter;
        FILE *file = fopen(answer, "r");
        if (file && fscanf(file, "%d.\n", &status) == 1) {
            while ((letter = getc(file)) != EOF) putchar(letter);
            fclose(file);
            DeleteFileA(answer);
            return status;
        }
        if (file) fclose(file);
    }
}
